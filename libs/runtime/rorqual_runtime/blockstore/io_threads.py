"""Moves side by side where there is no ring: each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from rorqual_runtime.blockstore.slot_io import Move, Moves

NUM_THREADS = 16


class IoThreads:
    """Waits for system calls; a single move is done in the caller's thread."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._num_threads = num_threads
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="block-io")

    def each(self, work: Callable[[Move], None], moves: Iterator[Move], count: int) -> Moves:
        """As `SlotIo.read_each`, with work for what is to be done."""
        if count <= 1:
            for move in moves:
                work(move)
                yield move
            return
        running: dict[Future[None], Move] = {}
        try:
            while True:
                for move in islice(moves, self._num_threads - len(running)):
                    running[self._executor.submit(work, move)] = move
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    move = running.pop(future)
                    future.result()
                    yield move
        finally:
            wait(running)

    def close(self) -> None:
        """Return once nothing runs any more."""
        self._executor.shutdown(wait=True, cancel_futures=True)
