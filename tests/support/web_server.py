"""A web server that says what it is told to, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class WebServer:
    """answers: raw HTTP answers by path; requests: heads that came."""

    port: int
    answers: Mapping[str, bytes]
    requests: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


def answer(body: bytes, *, status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; header names with underscores."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if not any(line.lower().startswith(("content-length", "transfer")) for line in lines):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


@asynccontextmanager
async def web_server(
    answers: Mapping[str, bytes], tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebServer]:
    """On a free port of this machine; an empty answer is no answer at all."""
    server: WebServer

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            server.requests.append(head)
            reply = server.answers.get(head.split(" ")[1], answer(b"", status="404 Not Found"))
            if not reply:
                await reader.read()  # until the other end gives up
            writer.write(reply)
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    server = WebServer(listening.sockets[0].getsockname()[1], answers)
    async with listening:
        yield server
