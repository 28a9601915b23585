"""Least loaded first among thousands of places, without looking at all of them."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

_STALE_RATIO = 4


class PlacementIndex:
    """Places by load; changing one and finding the least loaded take O(log n).

    The answer is that of a scan: the smallest load, of equal ones the smallest number. Outdated
    entries of the heap are dropped when they come up, all of them when they are many.
    """

    def __init__(self, loads: Iterable[float]) -> None:
        self._loads = list(loads)
        if not self._loads:
            raise ValueError("need at least one place")
        self._heap = [(load, place) for place, load in enumerate(self._loads)]
        heapify(self._heap)
        self._limit = _STALE_RATIO * len(self._loads) + 64

    def load(self, place: int) -> float:
        """What the place is known to have."""
        return self._loads[place]

    def set_load(self, place: int, load: float) -> None:
        """The place has this much from now on."""
        self._loads[place] = load
        heappush(self._heap, (load, place))
        if len(self._heap) > self._limit:
            self._heap = [(load, place) for place, load in enumerate(self._loads)]
            heapify(self._heap)

    def least(self) -> int:
        """The least loaded place."""
        heap, loads = self._heap, self._loads
        load, place = heap[0]
        while load != loads[place]:
            heappop(heap)
            load, place = heap[0]
        return place

    def place(self, added_load: float) -> int:
        """The least loaded place, which has added_load more from now on."""
        place = self.least()
        load = self._loads[place] + added_load
        self._loads[place] = load
        heapreplace(self._heap, (load, place))
        return place
