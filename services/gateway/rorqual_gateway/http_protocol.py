"""What uvicorn's parser leaves open: bounds of a request's head, offers of other protocols."""

import asyncio
import re
from typing import Any

from rorqual_runtime.openai_errors import error_body
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_HEAD_END_BYTES = 4
_UPGRADE = re.compile(rb"(?i)(?<=\n)upgrade:")
_STATUS_LINES = {
    400: "400 Bad Request",
    431: "431 Request Header Fields Too Large",
    503: "503 Service Unavailable",
}


class EdgeProtocol(HttpToolsProtocol):
    """Hands a head to the parser once it is complete.

    A head that is too long is refused, one that never ends is dropped like an idle connection.
    An offer to go on in another protocol (Java's client offers HTTP/2 with every request) is
    declined by not seeing it: the parser would take the body for bytes of that protocol.

    max_connections: more than so many are told so, and closed.
    """

    max_connections = 10_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = b""
        self._is_between_requests = True
        self._num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody who never asks for anything is not kept either."""
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._end_with(503, f"{self.max_connections} connections are open already")
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Bytes of a body go on at once."""
        if not self._is_between_requests:
            self._go_on(data)
            return
        num_searched = max(0, len(self._head) - _HEAD_END_BYTES)
        self._head += data
        end = _HEAD_END.search(self._head, num_searched)
        if len(self._head) > MAX_HEAD_BYTES and (end is None or end.end() > MAX_HEAD_BYTES):
            self._refuse()
        elif end is not None or not self._head[:1].isalpha():
            self._pass_on(end.end() if end else 0)

    def on_message_begin(self) -> None:
        """The parser has a request."""
        self._is_between_requests = False
        self._num_head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A body follows, of any length."""
        self._num_head_bytes = -1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The parser has all of it."""
        self._is_between_requests = True
        super().on_message_complete()

    def _go_on(self, data: bytes) -> None:
        """More of a body, or of a head that came together with the request before it."""
        if self._num_head_bytes >= 0:
            self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse()
        else:
            super().data_received(data)

    def _pass_on(self, head_length: int) -> None:
        data, self._head = self._head, b""
        head = _UPGRADE.sub(b"x-declined:", data[:head_length])
        super().data_received(head + data[head_length:])

    def send_400_response(self, msg: str) -> None:
        """What the parser can't read is answered in the shape of all other errors."""
        self._end_with(400, "this can't be read as an HTTP/1.1 request")

    def _refuse(self) -> None:
        self._head = b""
        self._end_with(431, f"the request's headers exceed {MAX_HEAD_BYTES} bytes")

    def _end_with(self, status: int, message: str) -> None:
        body = error_body(status, message, param=None, code=None)
        head = f"HTTP/1.1 {_STATUS_LINES[status]}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
