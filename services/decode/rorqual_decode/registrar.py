"""Tells kvmeta about stored blocks, in batches, and again after kvmeta was away."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rorqual_runtime.errors import ServingError

from rorqual_decode.block_writer import StoredBlock

_GATHER_S = 0.01
_FIRST_RETRY_S = 0.2
_MAX_RETRY_S = 5.0

log = logging.getLogger(__name__)


class BlockRegistrar:
    """Registers every stored block once kvmeta answers; keeps at most max_backlog blocks meanwhile.

    A lost registration costs a recompute, so the oldest ones are dropped (and counted) beyond that.
    """

    def __init__(
        self,
        register: Callable[[Sequence[StoredBlock]], Awaitable[None]],
        *,
        max_batch: int,
        max_backlog: int,
    ) -> None:
        self._register = register
        self._max_batch = max_batch
        self._max_backlog = max_backlog
        self._backlog: deque[StoredBlock] = deque()
        self._wake = asyncio.Event()
        self.num_dropped = 0

    def add(self, block: StoredBlock) -> None:
        """Register this block soon; call on the event loop."""
        if len(self._backlog) >= self._max_backlog:
            self._backlog.popleft()
            self.num_dropped += 1
        self._backlog.append(block)
        self._wake.set()

    @property
    def num_waiting(self) -> int:
        """Blocks kvmeta has not confirmed."""
        return len(self._backlog)

    async def run(self) -> None:
        """Register for ever; the service tracks this as a task."""
        retry_s = _FIRST_RETRY_S
        while True:
            await self._wake.wait()
            await asyncio.sleep(_GATHER_S)
            try:
                await self.flush()
            except ServingError as err:
                log.warning("kvmeta did not take blocks", extra={"error": err.message})
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
            else:
                retry_s = _FIRST_RETRY_S

    async def flush(self) -> None:
        """Register what is known now.

        Raises: ServingError when kvmeta does not answer; the blocks stay for the next try.
        """
        while self._backlog:
            num_blocks = min(self._max_batch, len(self._backlog))
            batch = [self._backlog.popleft() for _ in range(num_blocks)]
            try:
                await self._register(batch)
            except BaseException:
                self._backlog.extendleft(reversed(batch))
                raise
        self._wake.clear()
