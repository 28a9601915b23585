"""Usage and log probabilities as OpenAI's clients read them."""

from collections.abc import Sequence
from typing import Any

from rorqual_recipe.output.events import TokenLogprob
from rorqual_recipe.protocols.base import MAX_BODY_PART_BYTES, TokenUsage
from rorqual_recipe.tokens.vocabulary import Vocabulary

LEAST_LOGPROB = -9999.0


def in_parts(body: bytes) -> list[bytes]:
    """A body in pieces that fit into messages."""
    starts = range(0, len(body), MAX_BODY_PART_BYTES)
    return [body[start : start + MAX_BODY_PART_BYTES] for start in starts]


def usage_object(usage: TokenUsage) -> dict[str, Any]:
    """OpenAI's usage, DeepSeek's names for hits and misses of the prefix cache, and our reason."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "prompt_cache_hit_tokens": usage.cached_tokens,
        "prompt_cache_miss_tokens": max(usage.prompt_tokens - usage.cached_tokens, 0),
        **usage.miss_fields,
    }


def logprobs_object(
    content: Sequence[TokenLogprob], reasoning: Sequence[TokenLogprob], vocabulary: Vocabulary
) -> dict[str, Any]:
    """Logprobs of a choice or chunk; reasoning tokens have a list of their own."""
    shown: dict[str, Any] = {
        "content": [_logprob(entry, vocabulary) for entry in content],
        "refusal": None,
    }
    if reasoning:
        shown["reasoning_content"] = [_logprob(entry, vocabulary) for entry in reasoning]
    return shown


def _logprob(entry: TokenLogprob, vocabulary: Vocabulary) -> dict[str, Any]:
    shown = _token(entry.token_id, entry.logprob, vocabulary)
    shown["top_logprobs"] = [_token(token, value, vocabulary) for token, value in entry.top]
    return shown


def _token(token_id: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    spelling = vocabulary.spelling_of(token_id)
    return {
        "token": shown_token(spelling),
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(spelling),
    }


def shown_token(spelling: bytes) -> str:
    r"""A token as text; bytes of an unfinished character as `\xf0`."""
    return spelling.decode("utf-8", errors="backslashreplace")
