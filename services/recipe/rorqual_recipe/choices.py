"""One choice of an answer: its tokens in order, and how many of them its client has got already."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason, TokenLogprob
from rorqual_recipe.output.sequence import Arrival, DeltaOrder

MAX_PIECE_TOKENS = 128


@dataclass(slots=True)
class Delta:
    """Tokens of one choice as decode sent them: ids of outputs seq, seq + 1, ..."""

    choice_index: int
    seq: int
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    cache_miss_reason: str = ""
    run: int = 0


@dataclass(slots=True)
class Choice:
    """One choice: its place in the token stream and its answer so far.

    num_delivered, end_delivered: what the client has got from an instance before this one.
    token_ids: all in order so far, int32: what a generation that is lost goes on behind.
    restart_prompt: the payload it was last submitted again with.
    """

    reader: AnswerReader
    order: DeltaOrder[Delta]
    last_news_s: float
    is_resending: bool = False
    num_delivered: int = 0
    end_delivered: bool = False
    token_ids: "array[int]" = field(default_factory=lambda: array("i"))
    num_losses: int = 0
    next_fence_s: float = 0.0
    knows_cached: bool = False
    restart_prompt: Any = None

    @property
    def is_finished(self) -> bool:
        return self.reader.finish_reason is not None

    @property
    def is_behind(self) -> bool:
        """What its client has got is still being made again."""
        if self.is_finished:
            return False
        return self.end_delivered or self.order.next_seq < self.num_delivered


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An answer that another instance began. Every choice has its own entry in each list.

    num_tokens, finish_reasons: what the client has got; the next event is number next_seq.
    """

    number: int
    lost_recipe_id: str
    next_seq: int
    num_tokens: Sequence[int]
    finish_reasons: Sequence[str]
    decode_ids: Sequence[str]


def delta_before(delta: Delta, num_tokens: int) -> Delta:
    """The part in front of this token of its choice."""
    end = num_tokens - delta.seq
    if end >= len(delta.token_ids) and delta.finish_reason is None:
        return delta
    return replace(
        delta,
        token_ids=delta.token_ids[: max(0, end)],
        logprobs=delta.logprobs[: max(0, end)],
        finish_reason=None,
    )


def in_pieces(delta: Delta, skip: int) -> Iterable[tuple[Sequence[int], Sequence[TokenLogprob]]]:
    """The tokens behind the first `skip`, and their logprobs, in pieces of a bounded size."""
    if not skip and len(delta.token_ids) <= MAX_PIECE_TOKENS:
        return ((delta.token_ids, delta.logprobs),)
    starts = range(skip, len(delta.token_ids), MAX_PIECE_TOKENS)
    spans = [slice(start, start + MAX_PIECE_TOKENS) for start in starts]
    return [(delta.token_ids[span], delta.logprobs[span]) for span in spans]


def classify(order: DeltaOrder[Delta], delta: Delta) -> Arrival:
    """Where a delta stands in its choice."""
    return order.classify(delta.seq, len(delta.token_ids), is_final=delta.finish_reason is not None)
