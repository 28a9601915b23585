"""Whether a stored prefix is worth reading, from whom, and how long it is worth waiting for."""

from collections.abc import Sequence
from math import exp2
from typing import NamedTuple

from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.step_cost import StepCost, chunk_cost_s

_MEMORY_S = 10.0
"""Half-life of a measurement."""
_FORGOTTEN_S = 60.0
"""A rate that was not measured for so long may have changed: it is tried again."""


class ReadRate(NamedTuple):
    """Bytes read and the seconds that took, older reads counting less."""

    num_bytes: float = 0.0
    took_s: float = 0.0
    measured_s: float = 0.0
    """When last, on any clock that the caller keeps to."""


def observe_read(rate: ReadRate, num_bytes: int, took_s: float, now_s: float) -> ReadRate:
    """The rate after one more read."""
    share = exp2(-max(0.0, now_s - rate.measured_s) / _MEMORY_S)
    return ReadRate(rate.num_bytes * share + num_bytes, rate.took_s * share + took_s, now_s)


def bytes_per_s(rate: ReadRate, now_s: float) -> float:
    """0 when nothing was measured lately."""
    if rate.took_s <= 0 or now_s - rate.measured_s > _FORGOTTEN_S:
        return 0.0
    return rate.num_bytes / rate.took_s


class FetchSource(NamedTuple):
    """Who could read the blocks."""

    name: str
    bytes_per_s: float
    """As measured; 0 = not known, and then it counts as quick, so that it is tried."""
    queued_bytes: int
    """Asked of it, not yet read."""


class StoredPrefix(NamedTuple):
    """What the store holds of a prompt."""

    num_blocks: int
    num_unread_bytes: int
    """Of these blocks, without those that are in host memory already."""
    num_prompt_tokens: int


class FetchChoice(NamedTuple):
    """Read the first num_blocks from this source, compute the rest."""

    num_blocks: int
    source: str
    expected_s: float
    """Until they are read."""
    reason: str


def fetch_s(source: FetchSource, num_bytes: float) -> float:
    """Seconds until the source has read so many bytes behind what it has to read already."""
    if source.bytes_per_s <= 0 or num_bytes <= 0:
        return 0.0
    return (source.queued_bytes + num_bytes) / source.bytes_per_s


def choose_fetch(
    prefix: StoredPrefix,
    sources: Sequence[FetchSource],
    cost: StepCost | None,
    engine_wait_s: float,
) -> FetchChoice:
    """The number of blocks and the source that bring the end of the prompt's computation nearest.

    sources: the own store first; of equal ones the first is asked. cost: of computing here, None =
    not measured, then everything is read. engine_wait_s: the engine is busy with others for so
    long, and what is read until then costs nobody anything.

    Reading takes a constant time a block and computing the more the further back it lies, so one
    of three is the best: all of them, none, or as many as come while the engine is busy.
    """
    source = min(sources, key=lambda s: fetch_s(s, prefix.num_unread_bytes))
    all_s = fetch_s(source, prefix.num_unread_bytes)
    everything = FetchChoice(prefix.num_blocks, source.name, all_s, "reading is quicker")
    if cost is None or prefix.num_blocks == 0 or all_s <= engine_wait_s:
        return everything
    num_free = _num_read_within(prefix, source, engine_wait_s)
    part_s = engine_wait_s + _compute_s(cost, prefix, num_free)
    if all_s + _compute_s(cost, prefix, prefix.num_blocks) <= part_s:
        return everything
    return FetchChoice(num_free, source.name, engine_wait_s, "computing is quicker")


def _num_read_within(prefix: StoredPrefix, source: FetchSource, wait_s: float) -> int:
    num_bytes = wait_s * source.bytes_per_s - source.queued_bytes
    share = max(0.0, num_bytes / prefix.num_unread_bytes)
    return min(prefix.num_blocks, int(share * prefix.num_blocks))


def _compute_s(cost: StepCost, prefix: StoredPrefix, num_read: int) -> float:
    context_tokens = num_read * BLOCK_TOKENS
    return chunk_cost_s(cost, max(0, prefix.num_prompt_tokens - context_tokens), context_tokens)


def fetch_patience_s(
    cost: StepCost | None, first_block: int, num_blocks: int, *, least_s: float, most_s: float
) -> float:
    """How long to wait for these blocks before they are computed instead.

    As long as computing them takes: whatever happens to a fetch, its prompt then waits at most
    twice as long as without a store. least_s: hiccups of a disk are waited out; most_s: also the
    wait where nothing is measured.
    """
    if cost is None:
        return most_s
    compute_s = chunk_cost_s(cost, num_blocks * BLOCK_TOKENS, first_block * BLOCK_TOKENS)
    return min(max(compute_s, least_s), most_s)
