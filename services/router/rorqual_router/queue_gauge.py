"""How many jobs the prefill queue holds: the stream's own count, plus what this router adds."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import get_logger

log = get_logger(__name__)


class QueueGauge:
    """Depth of the stream that all routers share, read now and then.

    depth of the last reading | published here since | admitted here, on their way
    So one router never passes the cap; other routers' jobs show with the next reading.
    """

    def __init__(self, read_depth: Callable[[], Awaitable[int]], interval_s: float) -> None:
        self._read_depth = read_depth
        self._interval_s = interval_s
        self._depth = 0
        self._num_published = 0
        self._num_admitted = 0

    @property
    def num_jobs(self) -> int:
        """Jobs in the queue, those being worked on included, and those admitted."""
        return self._depth + self._num_published + self._num_admitted

    @contextlib.contextmanager
    def admit(self, num_jobs: int) -> Iterator["Admitted"]:
        """Count jobs inside the block as on their way, then only those that were published."""
        admitted = Admitted(self, num_jobs)
        self._num_admitted += num_jobs
        try:
            yield admitted
        finally:
            self._num_admitted -= admitted.num_left

    def _note_published(self, is_new: bool) -> None:
        self._num_admitted -= 1
        self._num_published += is_new

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


class Admitted:
    """Jobs of one submission between admission and the queue."""

    def __init__(self, gauge: QueueGauge, num_jobs: int) -> None:
        self._gauge = gauge
        self.num_left = num_jobs
        """Not published yet."""

    def note_published(self, *, is_new: bool) -> None:
        """One of them is on the queue; is_new: it was not there before."""
        self.num_left -= 1
        self._gauge._note_published(is_new)
