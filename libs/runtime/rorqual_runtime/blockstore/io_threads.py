"""A few threads for the calls of one batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class IoThreads:
    """Runs the calls of a batch side by side; a batch of one runs in the caller's thread."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="block-io")

    def each(self, work: Callable[[int], bool], count: int) -> list[bool]:
        """work(0), ..., work(count - 1) in any order; their results in order."""
        results = [False] * count
        indices = iter(range(count))

        def run() -> None:
            for index in indices:  # shared: each index goes to one thread
                results[index] = work(index)

        if count <= 1:
            run()
            return results
        for future in [self._executor.submit(run) for _ in range(min(count, self._num_threads))]:
            future.result()
        return results

    def close(self) -> None:
        """Return once nothing runs any more."""
        self._executor.shutdown(wait=True, cancel_futures=True)
