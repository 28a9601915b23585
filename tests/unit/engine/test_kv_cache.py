"""Pages have one owner at a time and come back on every way out."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rorqual_engine.errors import NoPages
from rorqual_engine.kv import PagedKvCache, WindowLayout, uniform_layout

LAYOUT = uniform_layout(num_layers=2, bytes_per_token=4)


def test_page_holds_all_layers_of_128_tokens() -> None:
    assert LAYOUT.page_tokens == 128
    assert LAYOUT.page_bytes == 2 * 4 * 128
    assert LAYOUT.num_pages(128) == 1
    assert LAYOUT.num_pages(129) == 2


def test_lease_releases_when_the_block_raises() -> None:
    cache = PagedKvCache(LAYOUT, 4)
    with pytest.raises(KeyError), cache.allocate(3):
        raise KeyError
    assert cache.num_free == 4
    cache.check_integrity()


def test_handed_over_pages_outlive_the_block() -> None:
    cache = PagedKvCache(LAYOUT, 4)
    with cache.allocate(3) as lease:
        pages = list(lease.pages)
        heir = lease.hand_over()
    assert heir.pages == pages
    assert cache.num_free == 1
    heir.release()
    heir.release()
    assert cache.num_free == 4


def test_refusal_takes_nothing() -> None:
    cache = PagedKvCache(LAYOUT, 4)
    with cache.allocate(3) as lease:
        with pytest.raises(NoPages) as refused:
            lease.grow(2)
        assert (refused.value.wanted, refused.value.free) == (2, 1)
        assert len(lease) == 3
        lease.grow(1)
        assert len(set(lease.pages)) == 4
    cache.check_integrity()


def test_page_view_shares_the_memory() -> None:
    cache = PagedKvCache(LAYOUT, 2)
    cache.page_bytes_view(1).fill_(7)
    assert torch.equal(cache.page_bytes_view(1), torch.full((LAYOUT.page_bytes,), 7).byte())
    with pytest.raises(IndexError):
        cache.page_bytes_view(2)


def test_integrity_check_sees_a_shared_page() -> None:
    cache = PagedKvCache(LAYOUT, 4)
    lease, thief = cache.allocate(2), cache.allocate(1)
    thief.pages.append(lease.pages[0])
    with pytest.raises(RuntimeError, match="lost or shared"):
        cache.check_integrity()


@given(st.lists(st.integers(0, 5), max_size=30))
def test_no_page_is_ever_lost_or_shared(sizes: list[int]) -> None:
    cache = PagedKvCache(LAYOUT, 12)
    leases = []
    for size in sizes:
        try:
            leases.append(cache.allocate(size))
        except NoPages:
            leases.pop(0).release() if leases else None
        cache.check_integrity()
    for lease in leases:
        lease.release()
    assert cache.num_free == 12


def test_threads_share_the_pool() -> None:
    cache = PagedKvCache(LAYOUT, 8)

    def churn() -> None:
        for _ in range(200):
            with cache.allocate(2):
                pass

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.check_integrity()
    assert cache.num_free == 8


def test_every_sequence_of_a_windowed_model_owns_one_window_as_long_as_its_pages() -> None:
    window = WindowLayout(128, slot_bytes=64, snapshot_bytes=32, layers=())
    cache = PagedKvCache(replace(LAYOUT, window=window), 8, num_windows=2)
    first, second = cache.allocate(2), cache.allocate(1)
    assert {first.window, second.window} == {0, 1}
    assert tuple(cache.windows.shape) == (2, 64)
    with pytest.raises(NoPages):
        cache.allocate(1)
    assert cache.num_free == 5
    kept = first.window
    first.grow(1)
    heir = first.hand_over()
    assert (heir.window, first.window) == (kept, None)
    cache.check_integrity()
    heir.release()
    second.release()
    cache.check_integrity()
    assert cache.allocate(0).window is None
