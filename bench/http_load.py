"""A load generator that costs little: raw HTTP/1.1 over asyncio streams, timing each SSE event."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Endpoint:
    """Where the gateway listens."""

    host: str
    port: int


@dataclass
class StreamTiming:
    """When the events of one streamed answer arrived, on the client's monotonic clock."""

    sent_s: float
    """When the request had been written."""
    content_s: list[float] = field(default_factory=list)
    """Arrival of each event with non-empty content."""
    done_s: float = 0.0
    """When the stream ended."""
    completion_tokens: int = 0
    """As the server's usage reports."""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Request written to first non-empty content; to the end where no token spells anything."""
        return (self.content_s or [self.done_s])[0] - self.sent_s

    @property
    def tpot_s(self) -> float:
        """(latency - TTFT) / (output tokens - 1); 0 where no token spells anything."""
        spelt_s = self.content_s or [self.done_s]
        return (spelt_s[-1] - spelt_s[0]) / max(1, self.completion_tokens - 1)


def chat_body(model: str, content: str, *, max_tokens: int) -> dict[str, object]:
    """A greedy streamed chat request that generates exactly max_tokens."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def completion_body(model: str, token_ids: Sequence[int], *, max_tokens: int) -> dict[str, object]:
    """A greedy streamed continuation of token ids by exactly max_tokens."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream_once(
    endpoint: Endpoint, body: dict[str, object], *, timeout_s: float = 300.0
) -> StreamTiming:
    """Send one streamed request, a chat if it has messages, and time its events.

    Raises: RuntimeError on any status but 200 or on a stream without `[DONE]`.
    """
    return await asyncio.wait_for(_stream_once(endpoint, body), timeout_s)


async def _stream_once(endpoint: Endpoint, body: dict[str, object]) -> StreamTiming:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        raw = json.dumps(body).encode()
        path = "chat/completions" if "messages" in body else "completions"
        head = (
            f"POST /v1/{path} HTTP/1.1\r\nHost: {endpoint.host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
            "Connection: close\r\n\r\n"
        )
        writer.write(head.encode() + raw)
        await writer.drain()
        timing = StreamTiming(sent_s=time.perf_counter())
        status = await reader.readline()
        if b" 200 " not in status:
            rest = (await reader.read(4096)).decode(errors="replace")
            raise RuntimeError(f"{status.decode().strip()}: {rest[-600:]}")
        await _read_events(reader, timing)
        return timing
    finally:
        writer.close()


async def _read_events(reader: asyncio.StreamReader, timing: StreamTiming) -> None:
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        now_s = time.perf_counter()
        data = line[6:].strip()
        if data == b"[DONE]":
            timing.done_s = now_s
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(f"stream ended with {event['error']}")
        if _has_content(event):
            timing.content_s.append(now_s)
        if usage := event.get("usage"):
            timing.completion_tokens = usage["completion_tokens"]
            timing.prompt_tokens = usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            timing.cached_tokens = details.get("cached_tokens", 0)
    raise RuntimeError("the stream ended without [DONE]")


def _has_content(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        return bool(choice.get("text") or choice.get("delta", {}).get("content"))
    return False


@dataclass(frozen=True)
class LoadResult:
    """Medians and throughput of one closed batch of requests."""

    timings: Sequence[StreamTiming]
    wall_s: float

    @property
    def ttft_p50_s(self) -> float:
        """Median time to first token."""
        return statistics.median(t.ttft_s for t in self.timings)

    @property
    def tpot_p50_s(self) -> float:
        """Median time per output token after the first."""
        return statistics.median(t.tpot_s for t in self.timings)

    @property
    def output_tokens_per_s(self) -> float:
        """All output tokens over the wall time from first send to last byte."""
        return sum(t.completion_tokens for t in self.timings) / self.wall_s


async def run_load(
    endpoint: Endpoint, bodies: Sequence[dict[str, object]], *, concurrency: int
) -> LoadResult:
    """Send bodies with at most `concurrency` in flight and wait for all."""
    gate = asyncio.Semaphore(concurrency)

    async def one(body: dict[str, object]) -> StreamTiming:
        async with gate:
            return await stream_once(endpoint, body)

    started_s = time.perf_counter()
    timings = await asyncio.gather(*(one(body) for body in bodies))
    return LoadResult(timings, time.perf_counter() - started_s)
