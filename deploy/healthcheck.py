"""Exit code 0 when this container's instance of a service says ready in NATS discovery.

    python -IS healthcheck.py SERVICE [NATS_URL]

Standard library only, and few imports: it runs every few seconds beside the service.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator

TIMEOUT_S = 2.0
DEFAULT_URL = "nats://127.0.0.1:4222"


def main() -> int:
    """0 = ready, 1 = not."""
    service = sys.argv[1]
    url = sys.argv[2] if len(sys.argv) > 2 else os.environ.get("RORQUAL_NATS_URL", DEFAULT_URL)
    try:
        ready = is_ready(service, url.split(",")[0])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{service}: {error}\n")
        return 1
    return 0 if ready else 1


def is_ready(service: str, url: str) -> bool:
    """Whether an instance on this host name answers $SRV.INFO with ready=true.

    Raises: OSError when NATS does not answer in time.
    """
    host, _, port = url.rpartition("//")[2].rpartition("@")[2].partition(":")
    with socket.create_connection((host, int(port or 4222)), TIMEOUT_S) as connection:
        for info in _infos(connection, f"$SRV.INFO.rorqual-{service}"):
            metadata = info.get("metadata") or {}
            if metadata.get("host") == socket.gethostname() and metadata.get("ready") == "true":
                return True
    return False


def _infos(connection: socket.socket, subject: str) -> Iterator[dict]:
    """Replies to one request, until the connection is quiet for the timeout."""
    inbox = f"_INBOX.health.{os.getpid()}"
    options = json.dumps({"verbose": False, "pedantic": False, "name": "healthcheck"})
    connection.sendall(
        f"CONNECT {options}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} 0\r\n\r\n".encode()
    )
    with connection.makefile("rb") as lines:
        while line := lines.readline():
            if line.startswith(b"PING"):
                connection.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG "):
                payload = lines.read(int(line.split()[-1]) + 2)
                yield json.loads(payload)


if __name__ == "__main__":
    sys.exit(main())
