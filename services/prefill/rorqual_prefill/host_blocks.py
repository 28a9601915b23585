"""Blocks in host memory: on their way from the store into pages, and a while longer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from rorqual_runtime.blockstore.slot_io import page_memory

MIN_HOST_BLOCKS = 8
"""Fewer could not be shared between prompts that wait for pages and prompts that have them."""
_ALIGNMENT = 4096
"""Of every block, so that direct I/O can read straight into it."""


class BlockVersion(NamedTuple):
    """What a block goes by here. Behind a replay there may be a block under a key whose exact block
    is stored later: who is promised an exact one does not get what was read before that."""

    key: bytes
    is_exact: bool


def _future() -> asyncio.Future[bool]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class HostBlock:
    """Memory of one block. Whoever uses it has taken it and releases it."""

    array: np.ndarray
    """uint8 [block_bytes]; not to be written once it is filled."""
    version: BlockVersion | None = None
    num_users: int = 0
    filled: asyncio.Future[bool] = field(default_factory=_future)
    """Whether it holds that block, verified, once that is known."""


class HostBlocks:
    """A bounded number of blocks; of those nobody uses the longest unused make room.

    It only saves reading a block again: whether there is such a block, the store says. Lives on the
    event loop; threads touch nothing but the arrays that they are given.
    """

    def __init__(self, num_blocks: int, block_bytes: int, *, is_page_locked: bool = False) -> None:
        """is_page_locked: memory that a GPU copies from by itself."""
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        stride = -(-block_bytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = _reserve(num_blocks * stride, is_page_locked).reshape(num_blocks, stride)
        self._num_made = 0
        self._by_version: dict[BlockVersion, HostBlock] = {}
        self._idle: OrderedDict[int, HostBlock] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return self.num_blocks - self._num_made + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that are being filled or read."""
        return self.num_blocks - self.num_free

    def holds(self, version: BlockVersion) -> bool:
        """Whether this block is here, or on its way."""
        return version in self._by_version

    def find(self, version: BlockVersion) -> HostBlock | None:
        """The block if it is here or on its way, for one more user."""
        if (block := self._by_version.get(version)) is not None:
            block.num_users += 1
            self._idle.pop(id(block), None)
        return block

    def take(self, version: BlockVersion) -> HostBlock:
        """Memory for a block that is not here, for one user, who fills it."""
        assert version not in self._by_version, "the block is here already"
        block = self._vacant()
        self._forget(block)
        block.version, block.num_users, block.filled = version, 1, _future()
        self._by_version[version] = block
        return block

    def note_filled(self, block: HostBlock, is_filled: bool) -> None:
        """What came of filling it; a block that was not filled is nobody's to find."""
        if not is_filled:
            self._forget(block)
        if not block.filled.done():
            block.filled.set_result(is_filled)

    def release(self, blocks: Sequence[HostBlock]) -> None:
        """One user less for each."""
        for block in blocks:
            block.num_users -= 1
            if block.num_users == 0:
                self._idle[id(block)] = block
                self._idle.move_to_end(id(block), last=block.version is not None)

    def _forget(self, block: HostBlock) -> None:
        if block.version is not None:
            self._by_version.pop(block.version, None)
            block.version = None

    def _vacant(self) -> HostBlock:
        if self._num_made < self.num_blocks:
            self._num_made += 1
            return HostBlock(self._memory[self._num_made - 1, : self.block_bytes])
        return self._idle.popitem(last=False)[1]


def _reserve(num_bytes: int, is_page_locked: bool) -> np.ndarray:
    """uint8 [num_bytes], aligned to pages; on the host alone touched only when it is used."""
    if is_page_locked:
        array: np.ndarray = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return array
    return np.frombuffer(page_memory(num_bytes), np.uint8)
