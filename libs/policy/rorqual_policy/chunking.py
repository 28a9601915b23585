"""One prefill step: which pulled prompts get how many tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.prefill_order import SHORT_FIRST, PrefillOrder, prefill_key_s
from rorqual_policy.step_cost import StepCost, chunk_cost_s, solve_chunk_tokens


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


class Chunk(NamedTuple):
    """Tokens of one sequence in one step."""

    sequence_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How a step is filled."""

    cost: StepCost
    spare_s: float
    """Time of the step less its a0; a step does no less work than that anyway."""
    max_tokens: int
    """What a step can hold at most."""
    order: PrefillOrder = SHORT_FIRST
    shared_part: float = 0.5
    """Of the time, kept for the shortest prompts; see `PrefillPolicy`."""

    def __post_init__(self) -> None:
        if self.max_tokens < BLOCK_TOKENS or not 0 <= self.shared_part < 1:
            raise ValueError(f"need max_tokens >= {BLOCK_TOKENS}, 0 <= shared_part < 1; got {self}")


def plan_chunks(waiting: Sequence[WaitingSequence], plan: StepPlan) -> list[Chunk]:
    """Chunks of one prefill step, most urgent sequence first, at most one a sequence.

    - A chunk ends on an absolute BLOCK_TOKENS boundary, or at the end of its prompt; anywhere where
      the next block takes longer than what goes in order: behind a deep context it can take several
      steps' time.
    - All chunks together cost at most spare_s or a0, if that is more; a step that is too short for
      one token of the most urgent prompt computes that alone all the same.
    - One part of the time goes in order, so no prompt waits for ever; the shared part to those with
      least work left, so a short one never waits for a long one to finish: of n prompts
      each that costs at most 1/n of the shared part is finished by this step. A step too short for
      both goes in order.
    - Work conserving: what is left over brings no waiting prompt to a further end of a chunk.
    The result depends on nothing but the arguments.

    Raises: ValueError for a sequence without remaining tokens.
    """
    for sequence in waiting:
        if sequence.remaining_tokens < 1 or sequence.computed_tokens < 0:
            raise ValueError(f"need remaining_tokens >= 1, computed_tokens >= 0; got {sequence}")
    by_urgency = _by_urgency(waiting, plan)
    if not by_urgency:
        return []
    spare_s = max(plan.spare_s, plan.cost.a0_s)
    shared_s = plan.shared_part * spare_s if len(by_urgency) > 1 else 0.0
    first, first_s = _first_piece(by_urgency[0], plan.cost, spare_s - shared_s)
    if first_s > spare_s:
        return [first]
    by_work = sorted(by_urgency, key=lambda sequence: _work_s(sequence, plan.cost))
    filling = _Filling(plan, spare_s, spare_s - shared_s)
    filling.grant(by_urgency, kept_s=shared_s if first_s <= spare_s - shared_s else 0.0)
    filling.grant(by_work)
    filling.grant(by_urgency)
    return [
        Chunk(sequence.sequence_id, filling.granted[sequence.sequence_id])
        for sequence in by_urgency
        if sequence.sequence_id in filling.granted
    ]


def _by_urgency(waiting: Sequence[WaitingSequence], plan: StepPlan) -> list[WaitingSequence]:
    def urgency(sequence: WaitingSequence) -> tuple[float, float, str]:
        key_s = prefill_key_s(sequence.arrival_s, _work_s(sequence, plan.cost), plan.order)
        return key_s, sequence.arrival_s, sequence.sequence_id

    return sorted(waiting, key=urgency)


def _work_s(sequence: WaitingSequence, cost: StepCost) -> float:
    """Few tokens behind a deep context can be more than many without any."""
    return chunk_cost_s(cost, sequence.remaining_tokens, sequence.computed_tokens)


class _Filling:
    """A step while it is being filled."""

    def __init__(self, plan: StepPlan, spare_s: float, in_order_s: float) -> None:
        """in_order_s: of spare_s, what goes in order."""
        self._cost = plan.cost
        self._in_order_s = in_order_s
        self._left_s = spare_s
        self._left_tokens = plan.max_tokens
        self.granted: dict[str, int] = {}

    def grant(self, order: Sequence[WaitingSequence], *, kept_s: float = 0.0) -> None:
        """Give in this order while more than kept_s of the time is left."""
        for sequence in order:
            before = self.granted.get(sequence.sequence_id, 0)
            before_s = chunk_cost_s(self._cost, before, sequence.computed_tokens)
            after = self._largest(sequence, before, before_s + self._left_s - kept_s)
            if after > before:
                self.granted[sequence.sequence_id] = after
                self._left_tokens -= after - before
                after_s = chunk_cost_s(self._cost, after, sequence.computed_tokens)
                self._left_s -= after_s - before_s

    def _largest(self, sequence: WaitingSequence, before: int, limit_s: float) -> int:
        """Largest chunk that costs no more and ends on a boundary or at the prompt's end."""
        limit = min(sequence.remaining_tokens, before + self._left_tokens)
        num_tokens = solve_chunk_tokens(self._cost, limit, sequence.computed_tokens, limit_s)
        if num_tokens == sequence.remaining_tokens:
            return num_tokens
        unit = _unit_tokens(sequence, self._cost, self._in_order_s)
        end = (sequence.computed_tokens + num_tokens) // unit * unit
        return max(0, end - sequence.computed_tokens)


def _first_piece(sequence: WaitingSequence, cost: StepCost, limit_s: float) -> tuple[Chunk, float]:
    """What brings a prompt to its next boundary, and its seconds."""
    num_tokens = _to_boundary(sequence, _unit_tokens(sequence, cost, limit_s))
    took_s = chunk_cost_s(cost, num_tokens, sequence.computed_tokens)
    return Chunk(sequence.sequence_id, num_tokens), took_s


def _unit_tokens(sequence: WaitingSequence, cost: StepCost, limit_s: float) -> int:
    """Between boundaries of its chunks: a block, or a token where that is too dear."""
    block = _to_boundary(sequence, BLOCK_TOKENS)
    fits = chunk_cost_s(cost, block, sequence.computed_tokens) <= limit_s
    return BLOCK_TOKENS if fits else 1


def _to_boundary(sequence: WaitingSequence, unit_tokens: int) -> int:
    return min(sequence.remaining_tokens, unit_tokens - sequence.computed_tokens % unit_tokens)
