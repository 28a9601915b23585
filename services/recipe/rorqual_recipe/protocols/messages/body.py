"""A whole answer of the Messages API: everything is collected into one body."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json
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
from rorqual_recipe.protocols.base import MAX_BODY_PART_BYTES, AnswerFacts, TokenUsage
from rorqual_recipe.protocols.messages.answer import (
    call_warning,
    input_fields,
    message_head,
    stop_fields,
    usage_object,
)
from rorqual_recipe.protocols.messages.thinking_signature import ThinkingSigner
from rorqual_recipe.protocols.service_tier import tier_of


@dataclass(slots=True)
class _Block:
    """A block that grows. call: what began it, for a tool_use."""

    kind: str
    pieces: list[str] = field(default_factory=list)
    call: ToolCallBegan | None = None


class MessageBody:
    """EventWriter of a single answer."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._signer = ThinkingSigner(facts.signing_key)
        self._blocks: list[_Block] = []
        self._finished: AnswerFinished | None = None
        self._warnings = list(parsed.warnings)
        self._tier = tier_of(parsed.priority, usual="standard")

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        for event in events:
            if isinstance(event, ContentDelta):
                self._append("text", event.text)
            elif isinstance(event, ReasoningDelta):
                self._append("thinking", event.text)
            elif isinstance(event, ToolArgumentsDelta):
                self._blocks[-1].pieces.append(event.text)
            elif isinstance(event, ToolCallBegan):
                self._blocks.append(_Block("tool_use", call=event))
            elif isinstance(event, ToolCallEnded):
                self._warn(call_warning(len(self._blocks) - 1, event))
            elif isinstance(event, OutputWarning):
                self._warn(event.message)
            else:
                self._finished = event
        return []

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        blocks = ",".join(map(self._block_json, self._blocks))
        tail: dict[str, Any] = {
            **stop_fields(self._finished),
            "usage": usage_object(usage, self._tier, is_final=True),
        }
        if self._warnings:
            tail["warnings"] = self._warnings
        head = compact_json(message_head(self._facts))[:-1]
        encoded = f'{head},"content":[{blocks}],{compact_json(tail)[1:]}'.encode()
        starts = range(0, len(encoded), MAX_BODY_PART_BYTES)
        return [encoded[start : start + MAX_BODY_PART_BYTES] for start in starts]

    def _append(self, kind: str, text: str) -> None:
        if not text:
            return
        if not self._blocks or self._blocks[-1].kind != kind:
            self._blocks.append(_Block(kind))
        self._blocks[-1].pieces.append(text)

    def _warn(self, warning: str | None) -> None:
        if warning:
            self._warnings.append(warning)

    def _block_json(self, block: _Block) -> str:
        text = "".join(block.pieces)
        if block.call is not None:
            head = {"type": "tool_use", "id": block.call.call_id, "name": block.call.name}
            return f"{compact_json(head)[:-1]},{input_fields(text)}}}"
        if block.kind == "text":
            return compact_json({"type": "text", "text": text})
        signature = self._signer.begin()
        signature.update(text)
        return compact_json({"type": "thinking", "thinking": text, "signature": signature.text()})
