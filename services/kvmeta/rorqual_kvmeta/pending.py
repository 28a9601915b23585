"""Registrations that Redis could not take yet."""

from collections import OrderedDict
from collections.abc import Iterable

from rorqual_kvmeta.blocks import StoredBlock


class PendingBlocks:
    """A bounded buffer, newest kept: a lost registration costs a recomputation, nothing more."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[tuple[str, bytes], StoredBlock] = OrderedDict()
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, fingerprint: str, blocks: Iterable[StoredBlock]) -> None:
        """Keep blocks for later; over the bound the oldest are dropped and counted."""
        for block in blocks:
            self._blocks.pop((fingerprint, block.key), None)
            self._blocks[fingerprint, block.key] = block
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
            self.num_dropped += 1

    def forget(self, fingerprint: str, keys: Iterable[bytes]) -> None:
        """These blocks are not there after all."""
        for key in keys:
            self._blocks.pop((fingerprint, key), None)

    def take(self, max_blocks: int) -> tuple[str, list[StoredBlock]]:
        """Remove some of the oldest blocks that share a fingerprint; at least one must be there."""
        first_fingerprint, _ = next(iter(self._blocks))
        taken: list[StoredBlock] = []
        while self._blocks and len(taken) < max_blocks:
            fingerprint, key = next(iter(self._blocks))
            if fingerprint != first_fingerprint:
                break
            taken.append(self._blocks.pop((fingerprint, key)))
        return first_fingerprint, taken
