"""Blocks in host memory: on their way from the store into pages, and a while longer."""

from __future__ import annotations

import asyncio
import mmap
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

MIN_HOST_BLOCKS = 8
"""Fewer could not be shared between prompts that wait for pages and prompts that have them."""
_ALIGNMENT = 4096
"""Of every block, so that direct I/O can read straight into it."""


def _future() -> asyncio.Future[bool]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True)
class HostBlock:
    """Memory of one block. Whoever uses it has taken it and releases it."""

    array: np.ndarray
    """uint8 [block_bytes]; not to be written once it is filled."""
    key: bytes = b""
    num_users: int = 0
    filled: asyncio.Future[bool] = field(default_factory=_future)
    """Whether it holds the verified block of its key, once that is known."""


class HostBlocks:
    """A bounded number of blocks by key; of those nobody uses the longest unused make room.

    It only saves reading a block again: whether there is such a block, the store says. Lives on the
    event loop; threads touch nothing but the arrays that they are given.
    """

    def __init__(self, num_blocks: int, block_bytes: int, *, is_page_locked: bool = False) -> None:
        """is_page_locked: memory that a GPU copies from by itself."""
        self.num_blocks, self.block_bytes = num_blocks, block_bytes
        stride = -(-block_bytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = _reserve(num_blocks * stride, is_page_locked).reshape(num_blocks, stride)
        self._num_made = 0
        self._by_key: dict[bytes, HostBlock] = {}
        self._idle: OrderedDict[int, HostBlock] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses."""
        return self.num_blocks - self._num_made + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that are being filled or read."""
        return self.num_blocks - self.num_free

    def holds(self, key: bytes) -> bool:
        """Whether this block is here, or on its way."""
        return key in self._by_key

    def find(self, key: bytes) -> HostBlock | None:
        """The block if it is here or on its way, for one more user."""
        if (block := self._by_key.get(key)) is not None:
            block.num_users += 1
            self._idle.pop(id(block), None)
        return block

    def take(self, key: bytes) -> HostBlock:
        """Memory for a block that is not here, for one user, who fills it."""
        assert key not in self._by_key, "the block is here already"
        block = self._vacant()
        self._by_key.pop(block.key, None)
        block.key, block.num_users, block.filled = key, 1, _future()
        self._by_key[key] = block
        return block

    def note_filled(self, block: HostBlock, is_filled: bool) -> None:
        """What came of filling it; a block that was not filled is nobody's to find."""
        if not is_filled:
            self._by_key.pop(block.key, None)
            block.key = b""
        if not block.filled.done():
            block.filled.set_result(is_filled)

    def release(self, blocks: Sequence[HostBlock]) -> None:
        """One user less for each."""
        for block in blocks:
            block.num_users -= 1
            if block.num_users == 0:
                self._idle[id(block)] = block
                self._idle.move_to_end(id(block), last=bool(block.key))

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
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8)
