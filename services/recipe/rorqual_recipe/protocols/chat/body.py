"""An answer of Chat Completions in one piece."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    TokenLogprob,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.chat.echo import ChatEcho
from rorqual_recipe.protocols.chat.shown import (
    in_parts,
    logprobs_object,
    usage_object,
)


@dataclass(slots=True)
class _Call:
    began: ToolCallBegan
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Choice:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    content_logprobs: list[TokenLogprob] = field(default_factory=list)
    reasoning_logprobs: list[TokenLogprob] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def take(self, event: AnswerEvent) -> None:
        match event:
            case ContentDelta():
                self.content.append(event.text)
                self.content_logprobs += event.logprobs
            case ReasoningDelta():
                self.reasoning.append(event.text)
                self.reasoning_logprobs += event.logprobs
            case ToolCallBegan():
                self.calls[event.index] = _Call(event)
            case ToolArgumentsDelta():
                self.calls[event.index].arguments.append(event.text)
            case ToolCallEnded() if event.problem:
                self.warnings.append(f"tool_calls[{event.index}]: {event.problem}")
            case OutputWarning():
                self.warnings.append(event.message)
            case AnswerFinished():
                self.finish_reason = event.reason


class ChatBody:
    """EventWriter of a single answer: everything is collected into one body."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        self._echo: ChatEcho = parsed.echo or ChatEcho()
        self._choices = [_Choice() for _ in range(parsed.num_choices)]

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        choice = self._choices[choice_index]
        for event in events:
            choice.take(event)
        return []

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        facts = self._facts
        body = {
            "id": f"chatcmpl-{facts.request_id}",
            "object": "chat.completion",
            "created": facts.created_unix_s,
            "model": facts.model,
            "system_fingerprint": facts.system_fingerprint,
            "choices": [self._shown(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_object(usage),
        }
        warnings = [*self._parsed.warnings, *(w for c in self._choices for w in c.warnings)]
        if warnings:
            body["warnings"] = warnings
        return in_parts(compact_json(body).encode())

    def _shown(self, index: int, choice: _Choice) -> dict[str, Any]:
        reason = choice.finish_reason
        shown: dict[str, Any] = {
            "index": index,
            "message": self._message(choice),
            "logprobs": None,
            "finish_reason": self._echo.finish_reason(reason) if reason else None,
        }
        if self._parsed.sampling.logprobs:
            shown["logprobs"] = logprobs_object(
                choice.content_logprobs, choice.reasoning_logprobs, self._facts.vocabulary
            )
        return shown

    def _message(self, choice: _Choice) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(choice.content),
            "refusal": None,
        }
        if choice.reasoning or self._facts.thinks:
            message["reasoning_content"] = "".join(choice.reasoning)
        calls = [_shown_call(call) for call in choice.calls.values()]
        if calls and self._echo.is_legacy:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message


def _shown_call(call: _Call) -> dict[str, Any]:
    began, arguments = call.began, "".join(call.arguments)
    head = {"index": began.index, "id": began.call_id}
    if began.is_custom:
        return {**head, "type": "custom", "custom": {"name": began.name, "input": arguments}}
    called = {"name": began.name, "arguments": arguments}
    return {**head, "type": "function", "function": called}
