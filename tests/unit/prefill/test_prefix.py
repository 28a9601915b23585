"""Stored blocks into pages: the longest verified prefix, and what kvmeta must forget."""

from __future__ import annotations

import asyncio
import threading

import pytest
from rorqual_prefill.prefix import GROUP_BLOCKS, PrefixLoader

from tests.support.waiting import WAIT_S, until

KEYS = [bytes([n]) for n in range(6)]
MANY = [bytes([n]) for n in range(3 * GROUP_BLOCKS - 2)]


class Store:
    """Blocks by key; those in `corrupt` are there but never read back."""

    def __init__(self, *keys: bytes, corrupt: frozenset[bytes] = frozenset()) -> None:
        self.keys, self.corrupt = set(keys), corrupt
        self.num_asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def has(self, fingerprint, key):
        return key in self.keys

    def get_many(self, fingerprint, wanted):
        return [self.get(key, into) for key, into in wanted]

    def get(self, key, into):
        self.num_asked += 1
        assert self.gate.wait(WAIT_S)
        if key in self.corrupt:
            self.keys.discard(key)
            return False
        into.append(key)
        return key in self.keys


class Memory:
    def __init__(self, store) -> None:
        self.pages: dict[int, list[bytes]] = {}
        self.loader = PrefixLoader(store, fingerprint="f", fill_pages=self.fill)

    def fill(self, pages, fill):
        return fill([self.pages.setdefault(page, []) for page in pages])

    async def load(self, num_promised: int = 0, keys=KEYS):
        self.done: list[int] = []
        return await self.loader.load(
            keys, range(10, 10 + len(keys)), num_promised=num_promised, on_page=self.done.append
        )


@pytest.mark.parametrize(
    ("stored", "corrupt", "num_promised", "num_blocks", "missing", "bad"),
    [
        (KEYS, (), 6, 6, [], []),
        (KEYS, (), 0, 6, [], []),
        (KEYS[:2], (), 2, 2, [], []),
        (KEYS[:2], (), 4, 2, KEYS[2:4], []),
        ([KEYS[0], KEYS[2]], (), 3, 1, [KEYS[1]], []),
        (KEYS, KEYS[1:2], 6, 1, [], [KEYS[1]]),
        (KEYS[:3], KEYS[1:2], 5, 1, KEYS[3:5], [KEYS[1]]),
        (KEYS, (KEYS[1], KEYS[3]), 6, 1, [], [KEYS[1], KEYS[3]]),
        ([], (), 0, 0, [], []),
    ],
)
async def test_the_first_miss_ends_the_hit(stored, corrupt, num_promised, num_blocks, missing, bad):
    memory = Memory(Store(*stored, corrupt=frozenset(corrupt)))
    hit = await memory.load(num_promised)
    assert (hit.num_blocks, hit.missing, hit.corrupt) == (num_blocks, missing, bad)
    assert memory.done == list(range(num_blocks))
    assert [memory.pages[10 + n] for n in range(num_blocks)] == [[k] for k in KEYS[:num_blocks]]


@pytest.mark.parametrize("num_stored", [7, 8, 9, 16, 20, 22])
async def test_a_long_prefix_is_read_in_groups(num_stored):
    memory = Memory(Store(*MANY[:num_stored]))
    hit = await memory.load(len(MANY), MANY)
    assert (hit.num_blocks, hit.missing, hit.corrupt) == (num_stored, MANY[num_stored:], [])
    assert memory.done == list(range(num_stored))
    assert [memory.pages[10 + n] for n in range(num_stored)] == [[k] for k in MANY[:num_stored]]


async def test_after_a_cancel_nothing_is_written_any_more():
    store = Store(*MANY)
    store.gate.clear()
    memory = Memory(store)
    loading = asyncio.create_task(memory.load(keys=MANY))
    await until(lambda: store.num_asked)
    loading.cancel()
    await asyncio.sleep(0.05)
    assert not loading.done(), "returned while a page was being written"
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await loading
    written = dict(memory.pages)
    await asyncio.sleep(0.05)
    assert memory.pages == written
    assert len(written) == GROUP_BLOCKS
