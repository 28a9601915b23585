"""Who keeps which window: as said, as long as said, the furthest first."""

from __future__ import annotations

import pytest
from rorqual_kvmeta.records import keys_of
from rorqual_kvmeta.window_places import MAX_BACK, MAX_TOLD, WindowPlace, WindowPlaces

KEYS = [bytes([number]) * 16 for number in range(20)]
NOW_S = 1000.0


def place(holder: str = "decode-1", until_s: float = 1180.0, replayed: bool = False) -> WindowPlace:
    return WindowPlace(holder, until_s, replayed)


@pytest.fixture
def places() -> WindowPlaces:
    return WindowPlaces(10)


def behind(places: WindowPlaces, num_blocks: int = 20, now_s: float = NOW_S) -> list[int]:
    return [number for number, _ in places.behind(keys_of(KEYS), num_blocks, now_s)]


def test_a_match_is_told_the_last_windows_behind_its_blocks(places: WindowPlaces) -> None:
    for number in (0, 3, 4, 8, 9, 12):
        places.note(KEYS[number], place(), NOW_S)
    assert behind(places) == [13, 10, 9, 5]
    assert len(behind(places)) == MAX_TOLD
    assert behind(places, 4) == [4, 1]
    assert behind(places, 0) == []


def test_a_window_that_has_expired_or_gone_is_not_told(places: WindowPlaces) -> None:
    places.note(KEYS[0], place(until_s=1010.0), NOW_S)
    places.note(KEYS[1], place(), NOW_S)
    assert behind(places, now_s=1020.0) == [2]
    places.note(KEYS[1], place("decode-2", until_s=0.0), NOW_S)
    assert behind(places) == [2, 1], "somebody else has lost it"
    places.note(KEYS[1], place(until_s=0.0), NOW_S)
    assert behind(places) == [1]


def test_an_exact_one_stays_known_beside_one_behind_a_replay(places: WindowPlaces) -> None:
    def known() -> WindowPlace:
        return places.behind(keys_of(KEYS), 1, NOW_S)[0][1]

    places.note(KEYS[0], place("a", replayed=True), NOW_S)
    places.note(KEYS[0], place("b"), NOW_S)
    places.note(KEYS[0], place("c", replayed=True), NOW_S)
    assert known() == place("b")
    places.note(KEYS[0], place("b", replayed=True), NOW_S)
    assert known() == place("b", replayed=True), "its own holder knows best"


def test_only_the_latest_are_remembered_and_only_the_end_is_looked_at() -> None:
    places = WindowPlaces(3)
    for number in range(5):
        places.note(KEYS[number], place(), NOW_S)
    assert (len(places), behind(places, 5)) == (3, [5, 4, 3])
    far = [number.to_bytes(16, "big") for number in range(MAX_BACK + 2)]
    places.note(far[0], place(), NOW_S)
    assert places.behind(keys_of(far), len(far), NOW_S) == []
