"""A streamed answer of Chat Completions.

Chunks are put together from ready-made pieces of text: this runs once per token of every stream.
"""

from collections.abc import Sequence

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json, json_string
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    FinishReason,
    OutputWarning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.chat.echo import ChatEcho
from rorqual_recipe.protocols.chat.shown import logprobs_object, usage_object
from rorqual_recipe.protocols.merging import merged, only_text

DONE = b"data: [DONE]\n\n"


class ChatChunks:
    """EventWriter of a stream: a role chunk per choice, deltas, finish.

    Usage is in the last chunk of the last choice; clients that ask for it (include_usage) get it
    in a chunk of its own instead, as OpenAI sends it.
    """

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        self._echo: ChatEcho = parsed.echo or ChatEcho()
        head = {
            "id": f"chatcmpl-{facts.request_id}",
            "object": "chat.completion.chunk",
            "created": facts.created_unix_s,
            "model": facts.model,
            "system_fingerprint": facts.system_fingerprint,
        }
        self._head = "data: " + compact_json(head)[:-1]
        self._tail = ',"usage":null}\n\n' if parsed.include_usage else "}\n\n"
        self._with_logprobs = parsed.sampling.logprobs
        self._choices: dict[int, _ChoiceFrames] = {}
        self._num_finished = 0

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        frames: list[bytes] = []
        choice = self._choices.get(choice_index)
        if choice is None:
            choice = self._begin(choice_index, frames)
        only = None if self._with_logprobs else only_text(events)
        if only is not None:
            kind, text = only
            is_content = kind is ContentDelta
            frames.append(choice.content(text) if is_content else choice.reasoning(text))
            return frames
        for event in merged(events):
            if isinstance(event, ContentDelta):
                frames.append(self._content(choice, event))
            elif isinstance(event, ReasoningDelta):
                frames.append(self._reasoning(choice, event))
            elif isinstance(event, ToolArgumentsDelta):
                frames.append(choice.delta(self._arguments(choice, event)))
            elif isinstance(event, ToolCallBegan):
                frames.append(choice.delta(self._call(choice, event)))
            elif isinstance(event, AnswerFinished):
                frames.append(self._finished(choice, event, usage))
            else:
                choice.note(event)
        return frames

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        if not self._parsed.include_usage:
            return [DONE]
        usage_json = compact_json(usage_object(usage))
        return [f'{self._head},"choices":[],"usage":{usage_json}}}\n\n'.encode(), DONE]

    def _begin(self, index: int, frames: list[bytes]) -> "_ChoiceFrames":
        before = f'{self._head},"choices":[{{"index":{index},"delta":{{'
        choice = self._choices[index] = _ChoiceFrames(before, self._tail, self._facts.thinks)
        frames.append(choice.delta(f'"role":"assistant","content":""{choice.no_reasoning}'))
        return choice

    def _content(self, choice: "_ChoiceFrames", event: ContentDelta) -> bytes:
        if not self._with_logprobs:
            return choice.content(event.text)
        delta = f'"content":{json_string(event.text)}{choice.no_reasoning}'
        shown = logprobs_object(event.logprobs, (), self._facts.vocabulary)
        return choice.delta_with_logprobs(delta, compact_json(shown))

    def _reasoning(self, choice: "_ChoiceFrames", event: ReasoningDelta) -> bytes:
        if not self._with_logprobs:
            return choice.reasoning(event.text)
        delta = f'"content":null,"reasoning_content":{json_string(event.text)}'
        shown = logprobs_object((), event.logprobs, self._facts.vocabulary)
        return choice.delta_with_logprobs(delta, compact_json(shown))

    def _call(self, choice: "_ChoiceFrames", event: ToolCallBegan) -> str:
        name = json_string(event.name)
        choice.calls[event.index] = event
        if self._echo.is_legacy:
            return f'"function_call":{{"name":{name},"arguments":""}}'
        kind, text = ("custom", "input") if event.is_custom else ("function", "arguments")
        head = f'"index":{event.index},"id":{json_string(event.call_id)},"type":"{kind}"'
        return f'"tool_calls":[{{{head},"{kind}":{{"name":{name},"{text}":""}}}}]'

    def _arguments(self, choice: "_ChoiceFrames", event: ToolArgumentsDelta) -> str:
        text = json_string(event.text)
        if self._echo.is_legacy:
            return f'"function_call":{{"arguments":{text}}}'
        if choice.calls[event.index].is_custom:
            return f'"tool_calls":[{{"index":{event.index},"custom":{{"input":{text}}}}}]'
        return f'"tool_calls":[{{"index":{event.index},"function":{{"arguments":{text}}}}}]'

    def _finished(self, choice: "_ChoiceFrames", event: AnswerFinished, usage: TokenUsage) -> bytes:
        self._num_finished += 1
        extra = ""
        if self._num_finished == self._parsed.num_choices and not self._parsed.include_usage:
            extra = f',"usage":{compact_json(usage_object(usage))}'
        if choice.warnings:
            extra += f',"warnings":{compact_json(choice.warnings)}'
        reason = self._echo.finish_reason(event.reason)
        return choice.last(f'"content":""{choice.no_reasoning}', reason, extra)


class _ChoiceFrames:
    """Frames of one choice: what stays the same in all of them is put together once."""

    def __init__(self, before: str, tail: str, thinks: bool) -> None:
        self._before = before
        self._tail = tail
        self._after = f'}},"logprobs":null,"finish_reason":null}}]{tail}'
        self.no_reasoning = ',"reasoning_content":null' if thinks else ""
        self._before_content = f'{before}"content":'
        self._after_content = f"{self.no_reasoning}{self._after}"
        self._before_reasoning = f'{before}"content":null,"reasoning_content":'
        self.calls: dict[int, ToolCallBegan] = {}
        self.warnings: list[str] = []

    def content(self, text: str) -> bytes:
        return f"{self._before_content}{json_string(text)}{self._after_content}".encode()

    def reasoning(self, text: str) -> bytes:
        return f"{self._before_reasoning}{json_string(text)}{self._after}".encode()

    def delta(self, delta: str) -> bytes:
        return f"{self._before}{delta}{self._after}".encode()

    def delta_with_logprobs(self, delta: str, logprobs: str) -> bytes:
        after = f'}},"logprobs":{logprobs},"finish_reason":null}}]{self._tail}'
        return f"{self._before}{delta}{after}".encode()

    def last(self, delta: str, reason: FinishReason | str, extra: str) -> bytes:
        tail = f"{extra}{self._tail}"
        after = f'}},"logprobs":null,"finish_reason":"{reason}"}}]{tail}'
        return f"{self._before}{delta}{after}".encode()

    def note(self, event: AnswerEvent) -> None:
        if isinstance(event, OutputWarning):
            self.warnings.append(event.message)
        elif isinstance(event, ToolCallEnded) and event.problem:
            self.warnings.append(f"tool_calls[{event.index}]: {event.problem}")
