"""Exit code 0 when this container's instance of a service says that it is ready.

    python -IS healthcheck.py SERVICE

Asks `/ready` beside the metrics. Standard library only, and few imports: it runs every few seconds
beside the service.
"""

import os
import socket
import sys

TIMEOUT_S = 2.0
DEFAULT_PORT = "9400"


def main() -> int:
    """0 = ready, 1 = not."""
    service, port = sys.argv[1], int(os.environ.get("RORQUAL_METRICS_PORT", DEFAULT_PORT))
    try:
        answer = ask(port)
    except OSError as error:
        sys.stderr.write(f"{service}: {error}\n")
        return 1
    head, _, body = answer.partition(b"\r\n\r\n")
    is_ok = head.split(b" ", 2)[1:2] == [b"200"]
    return 0 if is_ok and body.split()[:1] == [service.encode()] else 1


def ask(port: int) -> bytes:
    """All that `/ready` answers. Raises: OSError when it does not in time."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.read()


if __name__ == "__main__":
    sys.exit(main())
