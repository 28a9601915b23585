"""Work that would hold up the event loop: a few threads, and a bounded line before them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rorqual_runtime.errors import NoCapacity

T = TypeVar("T")


class WorkLane:
    """Threads of one kind of work, so that slow work of another kind never stands in its way."""

    def __init__(self, name: str, *, num_threads: int, max_waiting: int) -> None:
        """name: of the work, in the plural. max_waiting: what is under way included."""
        self._name = name
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._executor = ThreadPoolExecutor(num_threads, name)

    async def run(self, work: Callable[[], T]) -> T:
        """What work returns or raises. Raises: NoCapacity."""
        if self._num_waiting >= self._max_waiting:
            raise NoCapacity(f"too many {self._name} are waiting to be read")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._num_waiting -= 1
