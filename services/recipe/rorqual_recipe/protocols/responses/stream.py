"""Writers of Responses: events while streaming, else the response alone."""

from collections.abc import Iterable, Sequence
from typing import Any

from rorqual_runtime.errors import ServingError

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json
from rorqual_recipe.output.events import AnswerEvent
from rorqual_recipe.protocols.base import (
    MAX_BODY_PART_BYTES,
    AnswerFacts,
    TokenUsage,
)
from rorqual_recipe.protocols.responses.answer import Answer
from rorqual_recipe.protocols.responses.errors import response_error


class ResponseWriter:
    """Both writers. final: the response object, once the answer is complete."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self.final: dict[str, Any] | None = None
        self._frames: list[bytes] = []
        self._next_number = 0
        self._answer = Answer(facts, parsed, self._emit)

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        self._answer.take(events)
        return self._taken()

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        self.final = self._answer.end(usage)
        return self._taken()

    def write_failure(self, error: ServingError, usage: TokenUsage) -> bytes:
        """See WritesFailures.write_failure."""
        self._answer.fail(response_error(error), usage)
        return b"".join(self._taken())

    def _taken(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames

    def _emit(self, kind: str, body: str) -> None:
        raise NotImplementedError


class ResponseEvents(ResponseWriter):
    """EventWriter of a stream.

    Deltas stay as they were made, one a token: events are numbered, and their numbers must not
    depend on how the tokens arrived.
    """

    def _emit(self, kind: str, body: str) -> None:
        number = self._next_number
        self._next_number += 1
        frame = f'event: {kind}\ndata: {{"type":"{kind}",{body},"sequence_number":{number}}}\n\n'
        self._frames += _in_parts(frame.encode("utf-8", "replace"))


class ResponseBody(ResponseWriter):
    """EventWriter of a single answer: the object that a stream's last event would hold."""

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        super().finish(usage)
        return list(_in_parts(compact_json(self.final).encode("utf-8", "replace")))

    def _emit(self, kind: str, body: str) -> None:
        """Nobody is told before the end."""


def _in_parts(data: bytes) -> Iterable[bytes]:
    if len(data) <= MAX_BODY_PART_BYTES:
        return (data,)
    starts = range(0, len(data), MAX_BODY_PART_BYTES)
    return [data[start : start + MAX_BODY_PART_BYTES] for start in starts]
