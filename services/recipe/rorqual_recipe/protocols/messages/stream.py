"""A streamed answer of the Messages API: one event a frame, blocks opened when they have content.

Frames are put together from ready-made text: this runs once per token of every stream.
"""

from collections.abc import Sequence
from typing import Any

from rorqual_runtime.anthropic_errors import anthropic_error_frame, render_anthropic_error
from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json, json_string
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    OutputWarning,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.merging import merged
from rorqual_recipe.protocols.messages.answer import (
    call_warning,
    message_head,
    stop_fields,
    usage_object,
)
from rorqual_recipe.protocols.messages.thinking_signature import ThinkingSigner
from rorqual_recipe.protocols.service_tier import tier_of

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_DELTA = 'event: content_block_delta\ndata: {"type":"content_block_delta","index":'
_TEXT = {"type": "text", "text": ""}
_THINKING = {"type": "thinking", "thinking": "", "signature": ""}


def _frame(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {compact_json({'type': kind, **fields})}\n\n".encode()


class MessageStream:
    """EventWriter of a stream."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._signer = ThinkingSigner(facts.signing_key)
        self._signature = self._signer.begin()
        self._tier = tier_of(parsed.priority, usual="standard")
        self._has_started = False
        self._open: str | None = None
        self._index = -1
        self._finished: AnswerFinished | None = None
        self._warnings: list[str] = []

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        frames = self._start(usage)
        for event in merged(events):
            if isinstance(event, ContentDelta):
                if event.text:
                    self._switch_to("text", _TEXT, frames)
                    frames.append(self._delta('"text_delta","text":', event.text))
            elif isinstance(event, ReasoningDelta):
                if event.text:
                    self._think(event.text, frames)
            elif isinstance(event, ToolArgumentsDelta):
                if event.text:
                    frames.append(self._delta('"input_json_delta","partial_json":', event.text))
            else:
                self._other(event, frames)
        return frames

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        frames = self._start(usage)
        self._close(frames)
        frames += (self._message_delta(usage), _frame("message_stop"))
        return frames

    def write_failure(self, error: ServingError, usage: TokenUsage) -> bytes:
        """See WritesFailures.write_failure: tokens that were made are told before the error."""
        _, body, _ = render_anthropic_error(error)
        told = self._message_delta(usage) if self._has_started else b""
        return told + anthropic_error_frame(body)

    def _message_delta(self, usage: TokenUsage) -> bytes:
        extra = {"warnings": self._warnings} if self._warnings else {}
        return _frame(
            "message_delta",
            delta=stop_fields(self._finished),
            usage=usage_object(usage, self._tier, is_final=True),
            **extra,
        )

    def _start(self, usage: TokenUsage) -> list[bytes]:
        if self._has_started:
            return []
        self._has_started = True
        message = {
            **message_head(self._facts),
            "content": [],
            **stop_fields(None),
            "usage": usage_object(usage, self._tier, is_final=False),
        }
        return [_frame("message_start", message=message)]

    def _other(self, event: AnswerEvent, frames: list[bytes]) -> None:
        if isinstance(event, ToolCallBegan):
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            self._switch_to(event.call_id, block, frames)
        elif isinstance(event, ToolCallEnded):
            warning = call_warning(self._index, event)
            if warning:
                self._warnings.append(warning)
            self._close(frames)
        elif isinstance(event, OutputWarning):
            self._warnings.append(event.message)
        elif isinstance(event, AnswerFinished):
            self._finished = event
            self._close(frames)

    def _think(self, text: str, frames: list[bytes]) -> None:
        self._switch_to("thinking", _THINKING, frames)
        self._signature.update(text)
        frames.append(self._delta('"thinking_delta","thinking":', text))

    def _delta(self, kind_and_field: str, text: str) -> bytes:
        delta = f'{{"type":{kind_and_field}{json_string(text)}}}'
        return f'{_DELTA}{self._index},"delta":{delta}}}\n\n'.encode()

    def _switch_to(self, name: str, block: dict[str, Any], frames: list[bytes]) -> None:
        """Have the block of this name open, and no other one."""
        if self._open == name:
            return
        self._close(frames)
        self._open = name
        self._index += 1
        frames.append(_frame("content_block_start", index=self._index, content_block=block))
        if self._index == 0:
            frames.append(PING)

    def _close(self, frames: list[bytes]) -> None:
        if self._open is None:
            return
        if self._open == "thinking":
            frames.append(self._delta('"signature_delta","signature":', self._signature.text()))
            self._signature = self._signer.begin()
        frames.append(_frame("content_block_stop", index=self._index))
        self._open = None
