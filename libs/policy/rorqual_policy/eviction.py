"""What leaves the block store when it is full: what has expired, then what is worth least, but
nothing that somebody has been promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoredBlock(Protocol):
    """What decides the value of one block."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def last_used_unix_s(self) -> float:
        """In the future: it is held for a reader until then."""
        ...

    @property
    def expires_unix_s(self) -> float | None: ...

    @property
    def num_uses(self) -> int:
        """Minutes in which it was read."""
        ...

    @property
    def depth(self) -> int:
        """Blocks before it in its chain."""
        ...


@dataclass(frozen=True, slots=True)
class ValueEviction:
    """Value of a block: expected reuse a byte.

    Every block saves the same computation (128 tokens), so its size divides; a use is the likelier
    the more recent the last one was and, slowly, the more there were; the first blocks of a chain
    serve every chain that begins alike and are worth up to twice the deep ones, which need them.
    """

    idle_unit_s: float = 60.0
    """Idle times are told apart in this unit: readers note a use at most once in it."""
    max_hold_s: float = 600.0
    """Nobody holds a block for longer: a last use further ahead is that of a wrong clock."""

    def block_value(self, block: StoredBlock, now_unix_s: float) -> float:
        """0 for an expired block, infinite for a held one. A last use further in the future (the
        clock was set back) is now."""
        expires_unix_s = block.expires_unix_s
        if expires_unix_s is not None and expires_unix_s <= now_unix_s:
            return 0.0
        idle_s = now_unix_s - block.last_used_unix_s
        if idle_s < 0.0:
            if idle_s >= -self.max_hold_s:
                return math.inf
            idle_s = 0.0
        frequency = 1.0 + math.log2(1 + block.num_uses)
        reach = 1.0 + 1.0 / (1 + block.depth)
        return frequency * reach / ((1.0 + idle_s / self.idle_unit_s) * (block.num_bytes or 1))

    def choose_victims(
        self, blocks: Sequence[StoredBlock], *, now_unix_s: float, num_wanted: int
    ) -> list[int]:
        """Indices of all expired blocks, then of the least valuable ones until num_wanted are
        named; held ones never. Of equal ones the deeper goes, then the one named first."""
        ranks = sorted(
            (value, -block.depth, index)
            for index, block in enumerate(blocks)
            if (value := self.block_value(block, now_unix_s)) < math.inf
        )
        num_expired = next((n for n, rank in enumerate(ranks) if rank[0] > 0.0), len(ranks))
        return [index for _, _, index in ranks[: max(num_wanted, num_expired)]]

    def rank_segments(
        self, segments: Sequence[Sequence[StoredBlock]], *, now_unix_s: float
    ) -> list[tuple[int, float]]:
        """(index, value) of segments by the mean value of their least valuable quarter, the least
        first: there room is made at the smallest loss. Those without blocks are left out."""
        ranks = []
        for index, blocks in enumerate(segments):
            values = sorted(self.block_value(block, now_unix_s) for block in blocks)
            least = values[: max(1, len(values) // 4)]
            if least:
                ranks.append((index, sum(least) / len(least)))
        return sorted(ranks, key=lambda rank: (rank[1], rank[0]))

    def choose_segment_to_drop(
        self, victims_value: float | None, segment_values: Sequence[float]
    ) -> int | None:
        """Whether another block size gives room: the index of its least valuable segment if that is
        worth less than the blocks that would go otherwise (None: there are none), else None. A
        segment's value is the mean over its slots, free ones are 0; one with held blocks stays."""
        if not segment_values or min(segment_values) == math.inf:
            return None
        least = min(range(len(segment_values)), key=lambda index: (segment_values[index], index))
        if victims_value is None or segment_values[least] < victims_value:
            return least
        return None
