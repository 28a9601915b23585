"""Kept window states: for a while, within their memory, the newest first."""

from __future__ import annotations

import numpy as np
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.windows import WindowShelf


def snapshot(value: int, num_bytes: int = 100) -> np.ndarray:
    return np.full(num_bytes, value, np.uint8)


async def test_a_window_is_kept_for_its_time_and_no_longer() -> None:
    clock = ManualClock()
    shelf = WindowShelf(clock, keep_s=180, max_bytes=1000)
    assert shelf.put(b"a", snapshot(1))
    await clock.advance(179)
    found = shelf.get(b"a")
    assert found is not None and found[0] == 1
    await clock.advance(2)
    assert shelf.get(b"a") is None
    assert (len(shelf), shelf.num_bytes) == (0, 0)


def test_beyond_its_memory_the_oldest_leave() -> None:
    shelf = WindowShelf(ManualClock(), keep_s=180, max_bytes=250)
    for number, key in enumerate((b"a", b"b", b"c")):
        assert shelf.put(key, snapshot(number))
    assert [shelf.get(key) is not None for key in (b"a", b"b", b"c")] == [False, True, True]
    assert shelf.num_bytes == 200


async def test_put_again_it_is_new_and_counted_once() -> None:
    clock = ManualClock()
    shelf = WindowShelf(clock, keep_s=180, max_bytes=250)
    shelf.put(b"a", snapshot(1))
    shelf.put(b"b", snapshot(2))
    await clock.advance(100)
    shelf.put(b"a", snapshot(3))
    await clock.advance(100)
    assert shelf.get(b"b") is None
    found = shelf.get(b"a")
    assert found is not None and found[0] == 3
    assert shelf.num_bytes == 100


def test_what_is_larger_than_all_of_its_memory_is_not_kept() -> None:
    shelf = WindowShelf(ManualClock(), keep_s=180, max_bytes=50)
    assert not shelf.put(b"a", snapshot(1))
    assert not WindowShelf(ManualClock(), keep_s=180, max_bytes=0).put(b"a", snapshot(1))
    assert shelf.get(b"a") is None
