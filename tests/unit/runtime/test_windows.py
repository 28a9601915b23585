"""Kept window states: for a while, within their memory, exact ones before replayed ones."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rorqual_policy.window_value import choose_window_victims
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import DeadlineExceeded, NoCapacity, NotFound, ServingError
from rorqual_runtime.windows import KeptWindow, WindowExchange, WindowPlace, WindowShelf


def window(value: int, *, is_replayed: bool = False) -> KeptWindow:
    return KeptWindow(np.full(100, value, np.uint8), is_replayed, saved_tokens=128)


def open_shelf(clock: ManualClock, max_bytes: int = 1000) -> WindowShelf:
    return WindowShelf(clock, keep_s=180, max_bytes=max_bytes, choose_victims=choose_window_victims)


def kept(shelf: WindowShelf, key: bytes) -> int | None:
    found = shelf.get(key)
    return None if found is None else int(found.snapshot[0])


async def test_a_window_is_kept_for_its_time_since_it_was_read() -> None:
    clock = ManualClock()
    shelf = open_shelf(clock)
    assert shelf.put(b"a", window(1)) and shelf.put(b"b", window(2))
    await clock.advance(179)
    assert shelf.read(b"a") is not None
    assert (kept(shelf, b"a"), kept(shelf, b"b")) == (1, 2)
    await clock.advance(2)
    assert (kept(shelf, b"a"), kept(shelf, b"b")) == (1, None)
    await clock.advance(180)
    assert shelf.read(b"a") is None
    assert (len(shelf), shelf.num_bytes) == (0, 0)


async def test_beyond_its_memory_the_least_valuable_leave() -> None:
    clock = ManualClock()
    shelf = open_shelf(clock, max_bytes=350)
    for number, key in enumerate((b"a", b"b", b"c", b"d")):
        if number == 3:
            shelf.read(b"b")  # its conversation went on
            assert shelf.read(b"a") and shelf.read(b"a")
        assert shelf.put(key, window(number))
        await clock.advance(1)
    assert [kept(shelf, key) is not None for key in (b"a", b"b", b"c", b"d")] == [1, 0, 1, 1]
    assert shelf.num_bytes == 300


async def test_put_again_it_is_new_and_counted_once() -> None:
    clock = ManualClock()
    shelf = open_shelf(clock)
    shelf.put(b"a", window(1))
    shelf.put(b"b", window(2))
    await clock.advance(100)
    shelf.put(b"a", window(3))
    await clock.advance(100)
    assert (kept(shelf, b"a"), kept(shelf, b"b")) == (3, None)
    assert shelf.num_bytes == 100


def test_one_behind_a_replay_does_not_take_the_place_of_an_exact_one() -> None:
    shelf = open_shelf(ManualClock())
    assert shelf.put(b"a", window(1, is_replayed=True)) and shelf.put(b"a", window(2))
    assert shelf.put(b"a", window(3, is_replayed=True))
    assert kept(shelf, b"a") == 2


def test_what_is_larger_than_all_of_its_memory_is_not_kept() -> None:
    for max_bytes in (50, 0):
        shelf = open_shelf(ManualClock(), max_bytes)
        assert not shelf.put(b"a", window(1))
        assert shelf.get(b"a") is None


def open_exchange(
    monkeypatch: pytest.MonkeyPatch, answer: KeptWindow | ServingError
) -> tuple[WindowExchange, list[str]]:
    """One that was told of an exact window "a" whose holder answers so; what it does besides."""

    async def fetch_from(*_: object) -> KeptWindow:
        if isinstance(answer, ServingError):
            raise answer
        return answer

    done: list[str] = []

    def track(coroutine: Coroutine[Any, Any, Any]) -> None:
        done.append(coroutine.__name__)
        coroutine.close()

    monkeypatch.setattr(WindowExchange, "_fetch_from", fetch_from)
    ctx: Any = SimpleNamespace(clock=ManualClock(), instance_id="prefill-0", track=track)
    exchange = WindowExchange(
        ctx,
        "f",
        snapshot_bytes=100,
        keep_s=180,
        max_bytes=1000,
        choose_victims=choose_window_victims,
    )
    exchange.learn(b"a", WindowPlace("decode-0", ctx.clock.now_unix_s() + 100, is_replayed=False))
    return exchange, done


async def test_a_holder_that_has_a_replayed_one_by_now_is_asked_for_an_exact_one_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exchange, _ = open_exchange(monkeypatch, window(1, is_replayed=True))
    assert exchange.is_known(b"a", exact_only=True)
    assert await exchange.fetch(b"a") is not None
    assert not exchange.is_known(b"a", exact_only=True) and exchange.is_known(b"a")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotFound("gone"), ["_tell"]),
        (NoCapacity("the arena is full"), []),
        (DeadlineExceeded("the prompt had no time left"), []),
    ],
)
async def test_only_a_window_that_is_gone_is_told_to_be(
    monkeypatch: pytest.MonkeyPatch, error: ServingError, told: list[str]
) -> None:
    exchange, done = open_exchange(monkeypatch, error)
    assert await exchange.fetch(b"a") is None
    assert done == told and not exchange.is_known(b"a")
