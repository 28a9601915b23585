"""Chat Completions answers: chunks while streaming, else one body.

Chunks are put together from ready-made bytes: this runs once per token of every stream.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring  # type: ignore[attr-defined]
from typing import Any

from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.output.events import AnswerEvent, AnswerFinished, ContentDelta, TokenLogprob
from rorqual_recipe.protocols.base import MAX_BODY_PART_BYTES, AnswerFacts, TokenUsage
from rorqual_recipe.tokens.vocabulary import Vocabulary

DONE = b"data: [DONE]\n\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class ChatChunks:
    """EventWriter of a stream: a role chunk per choice, contents, finish, usage if asked for."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        head = {
            "id": f"chatcmpl-{facts.request_id}",
            "object": "chat.completion.chunk",
            "created": facts.created_unix_s,
            "model": facts.model,
            "system_fingerprint": facts.system_fingerprint,
        }
        self._head = "data: " + _json(head)[:-1]
        self._tail = ',"usage":null}\n\n' if parsed.include_usage else "}\n\n"
        self._started: set[int] = set()

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        frames = []
        if choice_index not in self._started:
            self._started.add(choice_index)
            frames.append(self._chunk(choice_index, '{"role":"assistant","content":""}'))
        for event in events:
            if isinstance(event, ContentDelta):
                delta = f'{{"content":{encode_basestring(event.text)}}}'
                frames.append(self._chunk(choice_index, delta, logprobs=self._logprobs(event)))
            elif isinstance(event, AnswerFinished):
                frames.append(self._chunk(choice_index, "{}", finish=f'"{event.reason}"'))
        return frames

    def finish(self, usage: TokenUsage) -> list[bytes]:
        """See EventWriter.finish."""
        if not self._parsed.include_usage:
            return [DONE]
        usage_json = _json(usage_object(usage))
        return [f'{self._head},"choices":[],"usage":{usage_json}}}\n\n'.encode(), DONE]

    def _chunk(
        self, index: int, delta: str, *, logprobs: str = "null", finish: str = "null"
    ) -> bytes:
        return (
            f'{self._head},"choices":[{{"index":{index},"delta":{delta},'
            f'"logprobs":{logprobs},"finish_reason":{finish}}}]{self._tail}'
        ).encode()

    def _logprobs(self, event: ContentDelta) -> str:
        if not self._parsed.sampling.logprobs:
            return "null"
        return _json(logprobs_object(event.logprobs, self._facts.vocabulary))


class ChatBody:
    """EventWriter of a single answer: everything is collected into one body."""

    def __init__(self, facts: AnswerFacts, parsed: ParsedRequest) -> None:
        self._facts = facts
        self._parsed = parsed
        choices = range(parsed.num_choices)
        self._texts: list[list[str]] = [[] for _ in choices]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in choices]
        self._finish: list[str | None] = [None for _ in choices]

    def write(
        self, choice_index: int, events: Sequence[AnswerEvent], usage: TokenUsage
    ) -> list[bytes]:
        """See EventWriter.write."""
        for event in events:
            if isinstance(event, ContentDelta):
                self._texts[choice_index].append(event.text)
                self._logprobs[choice_index] += event.logprobs
            elif isinstance(event, AnswerFinished):
                self._finish[choice_index] = event.reason
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
            "choices": [self._choice(index) for index in range(self._parsed.num_choices)],
            "usage": usage_object(usage),
        }
        encoded = _json(body).encode()
        starts = range(0, len(encoded), MAX_BODY_PART_BYTES)
        return [encoded[start : start + MAX_BODY_PART_BYTES] for start in starts]

    def _choice(self, index: int) -> dict[str, Any]:
        shown = logprobs_object(self._logprobs[index], self._facts.vocabulary)
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(self._texts[index]),
                "refusal": None,
            },
            "logprobs": shown if self._parsed.sampling.logprobs else None,
            "finish_reason": self._finish[index],
        }


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    """OpenAI's usage."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def logprobs_object(entries: Sequence[TokenLogprob], vocabulary: Vocabulary) -> dict[str, Any]:
    """OpenAI's logprobs of a choice or chunk."""
    return {"content": [_logprob(entry, vocabulary) for entry in entries], "refusal": None}


def _logprob(entry: TokenLogprob, vocabulary: Vocabulary) -> dict[str, Any]:
    shown = _token(entry.token_id, entry.logprob, vocabulary)
    shown["top_logprobs"] = [_token(token, value, vocabulary) for token, value in entry.top]
    return shown


def _token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    spelling = vocabulary.spelling_of(token_id)
    return {
        "token": spelling.decode("utf-8", errors="replace"),
        "logprob": max(logprob, -9999.0),
        "bytes": list(spelling),
    }
