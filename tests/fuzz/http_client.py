"""A client of a few lines: one connection, kept alive, that notices every deviation from HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

PATHS = {
    "chat_completions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "count_tokens": "/v1/messages/count_tokens",
    "tokenize": "/tokenize",
    "detokenize": "/detokenize",
}
"""Of the endpoints that take a body, by the name that recipe knows the protocol by."""
ANSWER_TIMEOUT_S = 60.0
_LAST_FRAMES = (
    b"data: [DONE]",
    b'"type":"message_stop"}',
    b'"response.completed"',
    b'"response.incomplete"',
    b'"response.failed"',
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. headers: by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_whole(self) -> bool:
        """A JSON object, or a stream of events with a proper end."""
        if not self.is_stream:
            return isinstance(json.loads(self.body), dict)
        *frames, rest = self.body.split(b"\n\n")
        return not rest and any(end in frames[-1] for end in _LAST_FRAMES)


class Connection:
    """Requests one after the other; connects again where the server has closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def send(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """The answer. Raises: TimeoutError, ValueError on broken framing, OSError."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            length = "" if body is None else f"content-length: {len(body)}\r\n"
            head = f"{method} {path} HTTP/1.1\r\nhost: fuzz\r\n{length}\r\n"
            writer.write(head.encode("latin-1") + (body or b""))
            answer = await _read_answer(reader)
        if answer.headers.get("connection") == "close":
            self.close()
        return answer


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    if "transfer-encoding" in headers:
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(status_line.split(" ")[1]), headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunks.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk is longer than it says")
    if await reader.readexactly(2) != b"\r\n":
        raise ValueError("something behind the last chunk")
    return b"".join(chunks)
