"""Answers of Completions: chunks while streaming, else one body."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.json_text import compact_json, json_string
from rorqual_recipe.output.events import (
    AnswerEvent,
    AnswerFinished,
    ContentDelta,
    OutputWarning,
    TokenLogprob,
)
from rorqual_recipe.protocols.base import AnswerFacts, TokenUsage
from rorqual_recipe.protocols.chat.chunks import DONE
from rorqual_recipe.protocols.chat.shown import (
    LEAST_LOGPROB,
    in_parts,
    shown_token,
    usage_object,
)
from rorqual_recipe.protocols.merging import merged
from rorqual_recipe.tokens.vocabulary import Vocabulary


def _head(facts: AnswerFacts) -> dict[str, Any]:
    return {
        "id": f"cmpl-{facts.request_id}",
        "object": "text_completion",
        "created": facts.created_unix_s,
        "model": facts.model,
        "system_fingerprint": facts.system_fingerprint,
    }


class CompletionChunks:
    """EventWriter of a stream."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        self._start = "data: " + compact_json(_head(facts))[:-1]
        self._tail = ',"usage":null}\n\n' if parsed.include_usage else "}\n\n"
        self._num_chars = [0] * parsed.num_choices
        self._num_finished = 0

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        frames = []
        for event in merged(events):
            if isinstance(event, ContentDelta):
                shown = self._logprobs(choice_index, event)
                self._num_chars[choice_index] += len(event.text)
                frames.append(self._chunk(choice_index, event.text, shown, "null", self._tail))
            elif isinstance(event, AnswerFinished):
                reason, tail = f'"{event.reason}"', self._last_tail(usage)
                frames.append(self._chunk(choice_index, "", "null", reason, tail))
        return frames

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        if not self._parsed.include_usage:
            return [DONE]
        shown = compact_json(usage_object(usage))
        return [f'{self._start},"choices":[],"usage":{shown}}}\n\n'.encode(), DONE]

    def _last_tail(self, usage: TokenUsage) -> str:
        self._num_finished += 1
        if self._num_finished < self._parsed.num_choices or self._parsed.include_usage:
            return self._tail
        return f',"usage":{compact_json(usage_object(usage))}}}\n\n'

    def _chunk(self, index: int, text: str, logprobs: str, reason: str, tail: str) -> bytes:
        return (
            f'{self._start},"choices":[{{"index":{index},"text":{json_string(text)},'
            f'"logprobs":{logprobs},"finish_reason":{reason}}}]{tail}'
        ).encode()

    def _logprobs(self, index: int, event: ContentDelta) -> str:
        if not self._parsed.sampling.logprobs:
            return "null"
        start = self._num_chars[index]
        return compact_json(legacy_logprobs(event.logprobs, self._facts.vocabulary, start))


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    finish_reason: str | None = None


class CompletionBody:
    """EventWriter of a single answer."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        self._choices = [_Choice() for _ in range(parsed.num_choices)]

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        choice = self._choices[choice_index]
        for event in events:
            if isinstance(event, ContentDelta):
                choice.texts.append(event.text)
                choice.logprobs += event.logprobs
            elif isinstance(event, OutputWarning):
                choice.warnings.append(event.message)
            elif isinstance(event, AnswerFinished):
                choice.finish_reason = event.reason
        return []

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        body = {
            **_head(self._facts),
            "choices": [self._shown(index, choice) for index, choice in enumerate(self._choices)],
            "usage": usage_object(usage),
        }
        warnings = [*self._parsed.warnings, *(w for c in self._choices for w in c.warnings)]
        if warnings:
            body["warnings"] = warnings
        return in_parts(compact_json(body).encode())

    def _shown(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = None
        if self._parsed.sampling.logprobs:
            logprobs = legacy_logprobs(choice.logprobs, self._facts.vocabulary, 0)
        return {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }


def legacy_logprobs(
    entries: Sequence[TokenLogprob], vocabulary: Vocabulary, first_offset: int
) -> dict[str, Any]:
    """Four lists of equal length. first_offset: characters of the text before these tokens."""
    spellings = [vocabulary.spelling_of(entry.token_id) for entry in entries]
    offsets = []
    offset = first_offset
    for spelling in spellings:
        offsets.append(offset)
        offset += len(spelling.decode("utf-8", errors="ignore"))
    return {
        "tokens": [shown_token(spelling) for spelling in spellings],
        "token_logprobs": [max(entry.logprob, LEAST_LOGPROB) for entry in entries],
        "top_logprobs": [_best(entry, vocabulary) for entry in entries],
        "text_offset": offsets,
    }


def _best(entry: TokenLogprob, vocabulary: Vocabulary) -> dict[str, float]:
    """The most likely tokens by spelling; of two that look the same the likelier one."""
    best: dict[str, float] = {}
    for token_id, logprob in entry.top:
        best.setdefault(shown_token(vocabulary.spelling_of(token_id)), max(logprob, LEAST_LOGPROB))
    return best
