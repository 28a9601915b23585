"""One prefill step: which waiting prompts get how many tokens, and whether to pull more work."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.prefill_order import PrefillOrder, prefill_key_s


@dataclass(frozen=True, slots=True)
class WaitingSequence:
    """A pulled prompt that still has tokens to compute."""

    sequence_id: str
    remaining_tokens: int
    """Tokens still to compute, >= 1."""
    computed_tokens: int
    """Absolute position of the next token to compute: cached plus computed so far."""
    arrival_s: float
    """When it was submitted, on any clock shared by all waiting sequences."""


@dataclass(frozen=True, slots=True)
class ChunkParams:
    """Order of waiting prompts: arrival_s + min(beta * work_s, max_wait_s), smallest first."""

    beta: float = 16.0
    """Seconds of queueing that one second of own work is worth. Source: scheduling study, bar 4."""
    tokens_per_s: float = 1000.0
    """Measured compute rate of this instance: turns tokens into seconds of work."""
    max_wait_s: float = 30.0
    """No prompt is overtaken by one that arrived later than this after it."""

    def __post_init__(self) -> None:
        if self.beta < 0 or self.tokens_per_s <= 0 or self.max_wait_s < 0:
            raise ValueError(f"need beta >= 0, tokens_per_s > 0, max_wait_s >= 0; got {self}")


class Chunk(NamedTuple):
    """Tokens of one sequence in one step."""

    sequence_id: str
    num_tokens: int


def plan_chunks(
    waiting: Sequence[WaitingSequence],
    budget_tokens: int,
    params: ChunkParams | None = None,
) -> list[Chunk]:
    """Chunks of one prefill step, most urgent sequence first, at most one a sequence.

    - A chunk ends on an absolute BLOCK_TOKENS boundary, or at the end of its prompt.
    - Half of the budget goes in `ChunkParams` order, so no prompt waits for ever; the other half
      to the shortest remaining prompts, so a short one never waits for a long one to finish: of n
      prompts, each with at most budget / 2n tokens to go is finished by this step.
    - Work conserving: what is left over fits no further block of any waiting prompt.
    A budget of BLOCK_TOKENS or more always makes progress; below two blocks the step can't be
    shared and the order alone decides. The result depends on nothing but the arguments.

    Raises: ValueError for a negative budget or a sequence without remaining tokens.
    """
    if budget_tokens < 0:
        raise ValueError(f"budget_tokens must be >= 0, got {budget_tokens}")
    for sequence in waiting:
        if sequence.remaining_tokens < 1 or sequence.computed_tokens < 0:
            raise ValueError(f"need remaining_tokens >= 1, computed_tokens >= 0; got {sequence}")
    by_urgency = _by_urgency(waiting, params or ChunkParams())
    by_length = sorted(by_urgency, key=lambda sequence: sequence.remaining_tokens)
    shared = budget_tokens // 2 if budget_tokens >= 2 * BLOCK_TOKENS else 0
    granted: dict[str, int] = {}
    left = _grant(by_urgency, budget_tokens - shared, granted)
    left = _grant(by_length, left + shared, granted)
    _grant(by_urgency, left, granted)
    return [
        Chunk(sequence.sequence_id, granted[sequence.sequence_id])
        for sequence in by_urgency
        if granted.get(sequence.sequence_id, 0) > 0
    ]


def _by_urgency(waiting: Sequence[WaitingSequence], params: ChunkParams) -> list[WaitingSequence]:
    order = PrefillOrder(params.beta, params.max_wait_s)

    def urgency(sequence: WaitingSequence) -> tuple[float, float, str]:
        work_s = sequence.remaining_tokens / params.tokens_per_s
        key_s = prefill_key_s(sequence.arrival_s, work_s, order)
        return key_s, sequence.arrival_s, sequence.sequence_id

    return sorted(waiting, key=urgency)


def _grant(order: Sequence[WaitingSequence], budget_tokens: int, granted: dict[str, int]) -> int:
    """Add to `granted` in this order while the budget lasts; the budget left over."""
    for sequence in order:
        if budget_tokens <= 0:
            break
        before = granted.get(sequence.sequence_id, 0)
        after = _cut(sequence, before + budget_tokens)
        if after > before:
            granted[sequence.sequence_id] = after
            budget_tokens -= after - before
    return budget_tokens


def _cut(sequence: WaitingSequence, limit_tokens: int) -> int:
    """Largest chunk within the limit that ends on a block boundary or at the prompt's end."""
    if sequence.remaining_tokens <= limit_tokens:
        return sequence.remaining_tokens
    end = (sequence.computed_tokens + limit_tokens) // BLOCK_TOKENS * BLOCK_TOKENS
    return max(0, end - sequence.computed_tokens)


@dataclass(frozen=True, slots=True)
class PrefillRoom:
    """What a prefill instance holds and could hold at most."""

    queued_tokens: int
    """Pulled and not yet computed."""
    max_queued_tokens: int
    num_active: int
    """Requests that hold pages: computing, or waiting for their decode instance."""
    max_active: int
    num_free_pages: int
    min_free_pages: int = 1
    """Pages that must be free before another job is pulled."""
    tokens_per_job: int = 0
    """Recent mean of tokens a job; 0 = not known, then jobs are pulled one by one."""


@dataclass(frozen=True, slots=True)
class PullDecision:
    """How many jobs to pull now; 0 with the reason for not pulling."""

    num_jobs: int
    reason: str


def can_pull(room: PrefillRoom) -> PullDecision:
    """Jobs that this instance may take off the queue without making them wait inside it.

    Pulled work waits where only one instance can do it, so an instance pulls only while its own
    queue is below its budget, and no more than is expected to fill it.
    """
    if room.num_active >= room.max_active:
        return PullDecision(0, f"{room.num_active} of {room.max_active} requests active")
    if room.num_free_pages < room.min_free_pages:
        return PullDecision(0, f"{room.num_free_pages} of {room.min_free_pages} needed pages free")
    if room.queued_tokens >= room.max_queued_tokens:
        return PullDecision(0, f"{room.queued_tokens} of {room.max_queued_tokens} tokens queued")
    spare_tokens = room.max_queued_tokens - room.queued_tokens
    num_fitting = spare_tokens // room.tokens_per_job if room.tokens_per_job > 0 else 1
    num_jobs = min(room.max_active - room.num_active, max(1, num_fitting))
    return PullDecision(num_jobs, f"room for {spare_tokens} tokens")
