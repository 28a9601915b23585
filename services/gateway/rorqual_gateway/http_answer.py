"""The HTTP side of one answer: what was sent, and how the rest is said in the client's dialect."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

from rorqual_runtime.accounts.quotas import QuotaState
from starlette.types import Send

from rorqual_gateway import http_io
from rorqual_gateway.dialects import Dialect, Headers
from rorqual_gateway.errors import HttpError
from rorqual_gateway.metrics import GatewayMetrics

MAX_WARNING_HEADER_BYTES = 1024
LAST_FRAMES_TIMEOUT_S = 5.0
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class HttpAnswer:
    """Sends one answer.

    num_frames: SSE frames sent so far. warnings, quota (of the caller's key): for its headers.
    has_ids: whether its events have ids.
    """

    def __init__(
        self, send: Send, dialect: Dialect, metrics: GatewayMetrics, *, request_id: str
    ) -> None:
        self._send = send
        self._dialect = dialect
        self._metrics = metrics
        self._request_id = request_id
        self.trace_id = ""
        self.warnings: Sequence[str] = ()
        self.quota: QuotaState | None = None
        self.has_begun = False
        self.num_frames = 0
        self.has_ids = False
        self._is_stream = False

    async def send_frames(self, frames: Sequence[bytes], *, more: bool) -> None:
        """More of a streamed answer; waits while the client's buffer is full."""
        await self._begin_stream()
        self.num_frames += len(frames)
        if frames or not more:
            await http_io.send_chunk(self._send, b"".join(frames), more=more)

    async def keep_alive(self) -> None:
        """A sign of life of an idle stream. Behind events with ids a comment has no empty line:
        there are clients that take id and empty line for an event without data."""
        await self._begin_stream()
        sign = self._dialect.keepalive
        if self.has_ids and sign.startswith(b":"):
            sign = sign.rstrip(b"\n") + b"\n"
        await http_io.send_chunk(self._send, sign, more=True)

    async def send_body(self, status: int, body: bytes) -> None:
        """A whole JSON answer."""
        self._begin(status)
        await http_io.send_whole(self._send, status, body, self._headers())

    async def fail(self, error: HttpError) -> None:
        """End with an error: as HTTP status, or as the last frames of a begun stream."""
        error = self._dialect.with_request_id(error, self._request_id)
        if self.has_begun:
            await self._break_off(error.sse_frames)
            return
        self._begin(error.status)
        headers = [*http_io.error_headers(error), *self._headers()]
        await http_io.send_whole(self._send, error.status, error.body, headers)

    async def _break_off(self, last_frames: bytes) -> None:
        """End what has begun. A client that does not read, or has got a part of a JSON body, can't
        be told anything any more."""
        if self._is_stream:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_FRAMES_TIMEOUT_S):
                    await http_io.send_chunk(self._send, last_frames, more=False)
                return
        http_io.abort_connection(self._send)

    async def _begin_stream(self) -> None:
        if not self.has_begun:
            self._is_stream = True
            self._begin(200)
            headers = [*_STREAM_HEADERS, *self._headers()]
            await http_io.start_response(self._send, 200, headers)

    def _begin(self, status: int) -> None:
        self.has_begun = True
        self._metrics.count_response(status)

    def _headers(self) -> Headers:
        headers = [
            *self._dialect.id_headers(self._request_id),
            (b"x-trace-id", self.trace_id.encode()),
        ]
        if self.quota is not None:
            headers += self._dialect.quota_headers(self.quota)
        if self.warnings:
            headers.append((b"x-rorqual-warnings", _warnings_header(self.warnings)))
        return headers


def _warnings_header(warnings: Sequence[str]) -> bytes:
    """A JSON list in ASCII of as many warnings as fit."""
    for num_shown in range(len(warnings), 0, -1):
        text = json.dumps(warnings[:num_shown]).encode()
        if len(text) <= MAX_WARNING_HEADER_BYTES:
            return text
    return b"[]"
