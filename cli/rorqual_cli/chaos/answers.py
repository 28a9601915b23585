"""What a client has got of an answer, in any of the protocols: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. texts: what was said, by kind: content, reasoning, calls."""

    texts: Mapping[str, str]
    finish: str
    num_tokens: int


@dataclass
class AnswerReader:
    """Takes the events of a stream, or the one body of an answer without.

    num_ends: how often the answer has ended; once is right. error: what it ended with instead.
    """

    texts: dict[str, str] = field(default_factory=dict)
    finish: str = ""
    num_tokens: int = 0
    num_ends: int = 0
    error: str = ""

    def answer(self) -> Answer | None:
        """The whole answer; None unless it has ended exactly once, and well."""
        if self.num_ends != 1 or self.error:
            return None
        return Answer(dict(self.texts), self.finish, self.num_tokens)

    def feed(self, data: str) -> None:
        """One `data:` line."""
        if data == "[DONE]":
            self.num_ends += 1
            return
        event = json.loads(data)
        if event.get("type") == "error" or event.get("error"):
            self.error = json.dumps(event)
        elif "choices" in event:
            self._chat_chunk(event)
        elif str(event.get("type", "")).startswith("response."):
            self._response_event(event)
        else:
            self._message_event(event)

    def feed_body(self, body: Mapping[str, Any]) -> None:
        """A Chat Completions answer in one piece."""
        for choice in body["choices"]:
            self._say(choice["message"])
            self.finish = choice["finish_reason"]
        self.num_tokens = body["usage"]["completion_tokens"]
        self.num_ends += 1

    def _chat_chunk(self, event: Mapping[str, Any]) -> None:
        for choice in event["choices"]:
            self._say(choice["delta"])
            self.finish = choice.get("finish_reason") or self.finish
        usage = event.get("usage") or {}
        self.num_tokens = usage.get("completion_tokens", self.num_tokens)

    def _say(self, said: Mapping[str, Any]) -> None:
        self._add("content", said.get("content"))
        self._add("reasoning", said.get("reasoning_content"))
        for call in said.get("tool_calls") or ():
            function = call["function"]
            self._add("calls", f"{function.get('name') or ''}{function.get('arguments') or ''}")

    def _response_event(self, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind.endswith(".delta") and isinstance(event.get("delta"), str):
            self._add(kind, event["delta"])
        elif kind in ("response.completed", "response.incomplete"):
            self.finish = kind
            self.num_tokens = event["response"]["usage"]["output_tokens"]
            self.num_ends += 1
        elif kind == "response.failed":
            self.error = json.dumps(event["response"].get("error"))

    def _message_event(self, event: Mapping[str, Any]) -> None:
        kind, delta = event.get("type"), event.get("delta") or {}
        if kind == "content_block_delta":
            for name in ("text", "thinking", "partial_json"):
                self._add(name, delta.get(name))
        elif kind == "message_delta":
            self.finish = delta.get("stop_reason") or ""
            self.num_tokens = event["usage"]["output_tokens"]
        elif kind == "message_stop":
            self.num_ends += 1

    def _add(self, kind: str, text: str | None) -> None:
        if text:
            self.texts[kind] = self.texts.get(kind, "") + text
