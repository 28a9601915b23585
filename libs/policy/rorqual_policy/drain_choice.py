"""Which instances go when there are more than the load needs: those with the least work."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainCandidate:
    """An instance that may be taken away, and what it would have to finish or hand over."""

    instance_id: str
    is_pending: bool = False
    """Started and not yet at work: nothing is lost with it."""
    num_requests: int = 0
    kv_tokens: int = 0
    """Of its running requests: what would have to move."""


@dataclass(frozen=True, slots=True)
class DrainChoice:
    """Instances to take away, the one with the least work first, and why these."""

    instance_ids: tuple[str, ...]
    reason: str


def choose_drained(candidates: Sequence[DrainCandidate], num: int) -> DrainChoice:
    """At most num instances: pending ones, then those with the fewest requests, then the least KV.

    Of equals the last name goes, so that a replayed log repeats every choice.
    """
    ordered = sorted(candidates, key=lambda c: c.instance_id, reverse=True)
    ordered.sort(key=lambda c: (not c.is_pending, c.num_requests, c.kv_tokens))
    chosen = ordered[: max(0, num)]
    if not chosen:
        return DrainChoice((), f"none of {len(candidates)} may go")
    num_requests = sum(c.num_requests for c in chosen)
    reason = f"{len(chosen)} of {len(candidates)} with the least work, {num_requests} requests"
    return DrainChoice(tuple(c.instance_id for c in chosen), reason)
