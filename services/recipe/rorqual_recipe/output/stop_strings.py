"""Stop strings found across any portions of text."""

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to the first stop string.

    The hit is the one that ends first; of several that end together, the one that starts first.
    So the answer depends on the characters only, never on how they arrive. At most len(stop) - 1
    characters are held back, and only while they could be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._max_held = max((len(stop) - 1 for stop in self._stops), default=0)
        self._held = ""
        self.hit: str | None = None

    @property
    def num_held(self) -> int:
        """Characters held back right now."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Characters that are certain to belong to the answer. After a hit: nothing."""
        if not self._stops:
            return text
        if self.hit is not None or not text:
            return ""
        window = self._held + text
        found = self._first_hit(window)
        if found is not None:
            start, self.hit = found
            self._held = ""
            return window[:start]
        keep = self._num_to_hold(window)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def finish(self) -> str:
        """What was held back, now that no stop string can follow."""
        held, self._held = self._held, ""
        return held

    def _first_hit(self, window: str) -> tuple[int, str] | None:
        hits = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := window.find(stop)) >= 0
        ]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop

    def _num_to_hold(self, window: str) -> int:
        for length in range(min(len(window), self._max_held), 0, -1):
            tail = window[-length:]
            if any(stop.startswith(tail) and len(stop) > length for stop in self._stops):
                return length
        return 0
