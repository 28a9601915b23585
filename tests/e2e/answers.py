"""Answers as events, and what two runs of the same request must have in common."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx

NEVER_THE_SAME = {
    *("id", "item_id", "response_id", "created", "created_at", "completed_at"),
    *("cached_tokens", "cache_read_input_tokens", "input_tokens", "prompt_tokens_details"),
    *("prompt_cache_hit_tokens", "prompt_cache_miss_tokens", "cache_miss_reason"),
}
TEXTS = {"content", "text", "delta", "logprobs"}


async def ask(
    base_url: str,
    path: str,
    body: dict[str, Any],
    begun: asyncio.Event,
    gaps_s: list[float] | None = None,
) -> list[Any]:
    """Events of a stream, or the one body. begun: set in the middle of the answer. gaps_s: gets
    the longest pause between two events after that."""
    data, longest_s, last_s = "", 0.0, 0.0
    async with (
        httpx.AsyncClient(timeout=120) as client,
        client.stream("POST", f"{base_url}/v1/{path}", json=body) as answer,
    ):
        async for part in answer.aiter_text():
            data += part
            now_s = time.monotonic()
            longest_s = max(longest_s, now_s - last_s if begun.is_set() else 0.0)
            last_s = now_s
            if data.count("data: ") > 25:
                begun.set()
        assert answer.status_code == 200, data
    begun.set()
    if gaps_s is not None:
        gaps_s.append(longest_s)
    events = [line[6:] for line in data.splitlines() if line.startswith("data: {")]
    return [json.loads(event) for event in events or [data]]


def told(events: list[Any]) -> Any:
    """What each choice says, in whatever portions its texts came; other facts once each; usage."""
    said: dict[tuple[str, str], list[str]] = {}
    facts: set[str] = set()
    for event in events:
        assert not event.get("error"), event
        for part in event.get("choices", [event]):
            rest = _take_texts(part, str(part.get("index", "")), said)
            facts.add(json.dumps(rest, sort_keys=True))
    usage = _take_texts(events[-1].get("usage"), "", {})
    return {key: "".join(texts) for key, texts in said.items()}, facts, usage


def _take_texts(value: Any, place: str, said: dict[tuple[str, str], list[str]]) -> Any:
    """The value without its texts, which are put into `said`."""
    if isinstance(value, list):
        return [_take_texts(entry, place, said) for entry in value]
    if not isinstance(value, dict):
        return value
    rest = {}
    for name, inner in value.items():
        if name == "logprobs" and inner:
            tokens = [entry["token"] for entry in inner["content"] or ()]
            said.setdefault((place, name), []).append("|".join(["", *tokens]))
        elif name in TEXTS and isinstance(inner, str | None):
            said.setdefault((place, name), []).append(inner or "")
        elif name not in NEVER_THE_SAME:
            rest[name] = _take_texts(inner, place, said)
    return rest
