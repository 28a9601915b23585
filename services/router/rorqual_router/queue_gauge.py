"""How many jobs the prefill queue holds: the stream's own count, plus what was sent since."""

import asyncio
from collections.abc import Awaitable, Callable

from rorqual_runtime.errors import ServingError
from rorqual_runtime.telemetry import get_logger

log = get_logger(__name__)


class QueueGauge:
    """Depth of the stream that all routers share, read now and then.

    Between two readings the jobs published here are added, so that one router never passes the
    cap; those of other routers show with the next reading.
    """

    def __init__(self, read_depth: Callable[[], Awaitable[int]], interval_s: float) -> None:
        self._read_depth = read_depth
        self._interval_s = interval_s
        self._depth = 0
        self._num_published = 0

    @property
    def num_jobs(self) -> int:
        """Jobs in the queue, those being worked on included."""
        return self._depth + self._num_published

    def add(self, num_jobs: int) -> None:
        """Jobs that are about to be published here; negative for those that could not be."""
        self._num_published += num_jobs

    async def refresh(self) -> None:
        """Read the stream; the last count stays when it can't be read."""
        num_before = self._num_published
        try:
            depth = await self._read_depth()
        except ServingError as error:
            log.debug("queue depth not read", extra={"reason": error.message})
            return
        self._depth = depth
        self._num_published -= num_before

    async def run(self) -> None:
        """Read for ever, at a steady interval."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._interval_s)
