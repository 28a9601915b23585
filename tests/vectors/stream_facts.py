"""What a rule may ask about a stream case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rorqual_recipe.model import ServedModel

Case = dict[str, Any]


@dataclass(frozen=True)
class StreamFacts:
    """What a rule may ask about a case. text: all of the answer, marks spelled out."""

    case: Case
    text: str
    special: tuple[str, ...]
    tools: frozenset[str] | None

    @classmethod
    def of(cls, case: Case, model: ServedModel) -> StreamFacts:
        """Facts of a case for a model."""
        raw = b"".join(_spelled(chunk, model) for chunk in case["chunks"])
        text = raw.decode("utf-8", "replace")
        special = tuple(spelling.decode() for spelling in model.vocabulary.special.values())
        return cls(case, text, special, _declared(case))

    @cached_property
    def parsing(self) -> dict[str, Any]:
        return self.case.get("parsing", {})

    @property
    def has_ids(self) -> bool:
        return any(chunk["kind"] == "tokens" for chunk in self.case["chunks"])

    @property
    def has_text(self) -> bool:
        return any(chunk["kind"] == "text" for chunk in self.case["chunks"])

    @property
    def mark(self) -> str:
        return self.parsing.get("special_tokens", {}).get("dsml", "｜DSML｜")

    @property
    def has_markup(self) -> bool:
        return f"<{self.mark}" in self.text or self.starts_in_calls

    @property
    def starts_in_calls(self) -> bool:
        choice = self.case.get("request", {}).get("tool_choice")
        return bool(self.parsing.get("starts_in_tool_calls")) or choice == "required"

    @property
    def close(self) -> str:
        return self.parsing.get("special_tokens", {}).get("thinking_end", "</think>")

    @property
    def is_json_mode(self) -> bool:
        return bool(self.parsing.get("parse_json_output"))


def _declared(case: Case) -> frozenset[str] | None:
    """Names of a request's tools, joined with their namespace; None when anything goes."""
    if "request" not in case:
        return None
    return frozenset(_names(case["request"].get("tools", ())))


def _names(tools: Iterable[dict[str, Any]]) -> Iterable[str]:
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from (f"{tool['name']}::{inner['name']}" for inner in tool["tools"])
        elif tool.get("type") == "tool_search":
            yield ""
        else:
            yield tool.get("function", tool).get("name", "")


def _spelled(chunk: dict[str, Any], model: ServedModel) -> bytes:
    if chunk["kind"] == "text":
        return chunk["text"].encode()
    return b"".join(map(model.vocabulary.spelling_of, chunk.get("ids", ())))
