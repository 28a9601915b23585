"""uvicorn inside the service's own event loop."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from rorqual_runtime.errors import Unavailable, Unsupported

from rorqual_gateway.http_protocol import EdgeProtocol

STALLED_CLIENT_S = 60
_KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class EmbeddedServer(uvicorn.Server):
    """Leaves signals to the service: it decides when to drain."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing to capture."""
        yield


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket, bound before the server starts so that a busy port ends the start.

    Raises: Unavailable naming address and port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named TCP: the event loop turns Nagle's algorithm off only for sockets that say so. With it
    # on, the second small write of an answer waits 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _drop_lost_clients(listener)
    try:
        listener.bind((host, port))
    except OSError as err:
        listener.close()
        raise Unavailable(f"can't listen on {host}:{port}: {err.strerror}") from err
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _drop_lost_clients(listener: socket.socket) -> None:
    """Connections inherit this: one whose client has vanished, or takes not a byte for a minute,
    is closed, whatever is buffered for it. An answer that is sent in full waits nowhere else."""
    for level, option, value in _KEEPALIVE_OPTIONS:
        listener.setsockopt(level, option, value)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_CLIENT_S * 1000)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate chain and its key, both PEM."""

    cert: Path
    key: Path

    def check(self) -> None:
        """Raises: Unsupported naming what is wrong with the pair."""
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.cert, self.key, password="")  # else a terminal is asked
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or getattr(error, "reason", "") or "it cannot be read"
            raise Unsupported(f"RORQUAL_GATEWAY_TLS_CERT, _TLS_KEY: {reason}") from error


def make_server(
    app: FastAPI, *, shutdown_s: float, max_connections: int, tls: TlsFiles | None = None
) -> EmbeddedServer:
    """A server for `app`; run it with `serve(sockets=[...])`, end it with `should_exit`."""
    protocol = type("Protocol", (EdgeProtocol,), {"max_connections": max_connections})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=tls.cert if tls else None,
        ssl_keyfile=str(tls.key) if tls else None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(shutdown_s)),
    )
    return EmbeddedServer(config)
