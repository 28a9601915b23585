"""The few ASGI moves that a request needs, without a framework in between."""

import asyncio
import codecs
from collections.abc import Mapping
from typing import Any

from rorqual_runtime.errors import DeadlineExceeded, InvalidRequest, RequestTooLarge
from starlette.types import Receive, Send

from rorqual_gateway.dialects import Headers
from rorqual_gateway.errors import HttpError


class ClientGone(Exception):
    """The client has closed the connection."""


async def read_body(
    receive: Receive, headers: Mapping[str, str], *, max_bytes: int, timeout_s: float
) -> bytes:
    """The whole body. Raises: RequestTooLarge, InvalidRequest, DeadlineExceeded, ClientGone."""
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > max_bytes:
        raise RequestTooLarge(int(length), max_bytes)
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read_chunks(receive, max_bytes)
    except TimeoutError:
        raise DeadlineExceeded(f"the body did not arrive within {timeout_s:g} s") from None
    if not body:
        raise InvalidRequest("the body is empty")
    return body.removeprefix(codecs.BOM_UTF8)


async def _read_chunks(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise RequestTooLarge(num_bytes, max_bytes)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client is gone; call it only after the whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start_response(send: Send, status: int, headers: Headers) -> None:
    """Status line and headers."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_whole(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A complete JSON answer."""
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await start_response(send, status, [*fixed, *headers])
    await send({"type": "http.response.body", "body": body})


async def send_chunk(send: Send, chunk: bytes, *, more: bool) -> None:
    """A part of a streamed answer; waits while the client's buffer is full."""
    await send({"type": "http.response.body", "body": chunk, "more_body": more})


def error_headers(error: HttpError) -> Headers:
    """Retry-After where there is one."""
    if not error.retry_after_s:
        return []
    return [(b"retry-after", b"%d" % error.retry_after_s)]


def abort_connection(send: Send) -> None:
    """Drop a connection that takes no more bytes, with whatever is buffered for it.

    The server's own clean-up would wait for that client to read first.
    """
    cycle: Any = getattr(send, "__self__", None)
    transport = getattr(cycle, "transport", None)
    if transport is not None:
        transport.abort()
