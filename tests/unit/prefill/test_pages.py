"""KV pages are given in the order they were asked for."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_engine.kv import KvLayout, PagedKvCache, uniform_layout
from rorqual_engine.kv.layout import WindowLayout
from rorqual_prefill.pages import PageGate
from rorqual_runtime.errors import ContextTooLong, QueueTimeout


@pytest.fixture
def cache():
    return PagedKvCache(uniform_layout(1, 4), 8)


@pytest.fixture
def gate(cache):
    return PageGate(cache)


async def hold(gate, num_pages, released: asyncio.Event, order: list[int]) -> None:
    async with gate.lease(num_pages, 5.0) as lease:
        assert len(lease) == num_pages
        order.append(num_pages)
        await released.wait()


async def test_a_large_prompt_is_not_starved_by_small_ones(gate, cache):
    order: list[int] = []
    first, rest = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(hold(gate, 5, first, order))]
    await asyncio.sleep(0.01)
    for num_pages in (8, 1, 2):
        tasks.append(asyncio.create_task(hold(gate, num_pages, rest, order)))
        await asyncio.sleep(0.01)
    assert order == [5], "a small prompt overtook a waiting large one"
    assert gate.num_free == 0, "pages that a waiting prompt needs were offered"
    rest.set()
    first.set()
    await asyncio.gather(*tasks)
    assert order == [5, 8, 1, 2]
    assert (gate.num_free, cache.num_used) == (8, 0)


async def test_a_wait_has_a_bound_and_leaves_nothing_behind(gate, cache):
    released = asyncio.Event()
    holder = asyncio.create_task(hold(gate, 8, released, []))
    await asyncio.sleep(0.01)
    with pytest.raises(QueueTimeout):
        async with gate.lease(1, 0.05):
            pass
    released.set()
    await holder
    assert (gate.num_free, cache.num_used) == (8, 0)


async def test_a_cancelled_wait_lets_the_next_one_in(gate, cache):
    released, order = asyncio.Event(), []
    holder = asyncio.create_task(hold(gate, 6, released, order))
    await asyncio.sleep(0.01)
    large = asyncio.create_task(hold(gate, 8, released, order))
    small = asyncio.create_task(hold(gate, 2, released, order))
    await asyncio.sleep(0.01)
    large.cancel()
    await asyncio.sleep(0.01)
    assert order == [6, 2]
    released.set()
    await asyncio.gather(holder, small)
    assert cache.num_used == 0


async def test_what_can_never_fit_is_refused_at_once(gate):
    with pytest.raises(ContextTooLong):
        async with gate.lease(9, 5.0):
            pass


async def test_who_finds_no_window_slot_waits_as_for_pages():
    layout = KvLayout(128, 64, (), WindowLayout(16, 8, 8, ()))
    cache = PagedKvCache(layout, 8, num_windows=1)
    gate, order = PageGate(cache), []
    first, rest = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(hold(gate, 2, first, order))]
    await asyncio.sleep(0.01)
    assert gate.num_free == 0, "pages that nobody can use were offered"
    tasks.append(asyncio.create_task(hold(gate, 3, rest, order)))
    await asyncio.sleep(0.01)
    assert order == [2]
    first.set()
    rest.set()
    await asyncio.gather(*tasks)
    assert order == [2, 3]
    assert (gate.num_free, cache.num_used_windows) == (8, 0)
