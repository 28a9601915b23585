"""Who keeps the window states behind which blocks: what their holders have said, for as long as
they said. Not in Redis: it lives for minutes."""

from collections import OrderedDict
from dataclasses import dataclass

from rorqual_kvmeta.records import Keys

MAX_TOLD = 4
"""With one match: some may have gone, and then the next one is tried."""
MAX_BACK = 512
"""Blocks before the end of a match that are looked at."""


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """One window state's holder."""

    holder_id: str
    expires_unix_s: float
    is_replayed: bool


class WindowPlaces:
    """At most max_places, the latest ones."""

    def __init__(self, max_places: int) -> None:
        self._max_places = max_places
        self._places: OrderedDict[bytes, WindowPlace] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, key: bytes, place: WindowPlace, now_unix_s: float) -> None:
        """What a holder says; one that expires at once is kept no more. An exact one is not
        forgotten for one behind a replay."""
        known = self._places.get(key)
        if known is not None and known.expires_unix_s > now_unix_s:
            is_other = known.holder_id != place.holder_id
            if is_other and (known.is_replayed < place.is_replayed or not place.expires_unix_s):
                return
        self._places.pop(key, None)
        if place.expires_unix_s > now_unix_s:
            self._places[key] = place
        while len(self._places) > self._max_places:
            self._places.popitem(last=False)

    def behind(
        self, keys: Keys, num_blocks: int, now_unix_s: float
    ) -> list[tuple[int, WindowPlace]]:
        """The places of windows behind the first n of num_blocks blocks, the greatest n first."""
        found: list[tuple[int, WindowPlace]] = []
        if not self._places:
            return found
        for number in range(num_blocks, max(0, num_blocks - MAX_BACK), -1):
            place = self._places.get(keys[number - 1].tobytes())
            if place is not None and place.expires_unix_s > now_unix_s:
                found.append((number, place))
                if len(found) == MAX_TOLD:
                    break
        return found
