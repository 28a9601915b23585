"""Stored blocks into host memory: the longest verified prefix, the urgent first, never for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

import pytest
from opentelemetry import trace
from rorqual_policy.prefix_fetch import FetchSource
from rorqual_policy.step_cost import StepCost
from rorqual_prefill.fetch import NUM_READERS, BlockFetcher, EngineView, Fetch, Promise
from rorqual_prefill.hit_counts import HitCounts
from rorqual_prefill.host_blocks import HostBlocks
from rorqual_prefill.read_line import Place
from rorqual_runtime.clock import WallClock

from tests.support.waiting import WAIT_S, until

BLOCK_BYTES = 16
GROUP = 8
QUICK = StepCost(a0_s=0.0, a1_s=1e-9, a2_s=0.0, a3_s=0.0)


def keys_of(prompt: int, num_blocks: int) -> list[bytes]:
    return [bytes([prompt, number]) for number in range(num_blocks)]


KEYS = keys_of(0, 6)


class Store:
    """Blocks by key; those in `corrupt` are there but never read back."""

    def __init__(self, *keys: bytes, corrupt: Sequence[bytes] = ()) -> None:
        self.keys, self.corrupt, self.replayed = set(keys), set(corrupt), set[bytes]()
        self.reads: list[list[bytes]] = []
        self.gate = threading.Event()
        self.gate.set()

    def has(self, fingerprint, key):
        return key in self.keys

    def num_stored(self, fingerprint, keys, *, num_exact):
        exact = self.keys - self.replayed
        of = [exact if number < num_exact else self.keys for number in range(len(keys))]
        return next((n for n, key in enumerate(keys) if key not in of[n]), len(keys))

    def get_many(self, fingerprint, wanted):
        self.reads.append([key for key, _ in wanted])
        assert self.gate.wait(WAIT_S)
        return [self._get(key, into) for key, into in wanted]

    def _get(self, key, into):
        if key in self.corrupt:
            self.keys.discard(key)
            return False
        into[:2] = list(key)
        return True


class Others:
    """One instance that reads for us if it is the quickest, and has the blocks of `keys`."""

    def __init__(self, *keys: bytes) -> None:
        self.keys = set(keys)
        self.num_asked = 0

    def sources(self, own_bytes_per_s):
        return [FetchSource("decode-1", 1e12, 0)] if self.keys else []

    async def read(self, name, wanted):
        self.num_asked += len(wanted)
        for key, into in wanted:
            into[:2] = list(key)
        return [key in self.keys for key, _ in wanted]


class Reader:
    """A fetcher over a store, with memory for num_host blocks."""

    def __init__(self, store: Store, *, num_host: int = 4 * GROUP, cost: StepCost | None = None):
        self.store = store
        self.host = HostBlocks(num_host, BLOCK_BYTES)
        self.others = Others()
        self.counts = HitCounts()
        self.fetcher = BlockFetcher(
            store,
            self.host,
            EngineView(lambda: cost, lambda: 0.0),
            self.others,
            self.counts,
            was_damaged=lambda key: key in store.corrupt,
            fingerprint="f",
            clock=WallClock(),
            tracer=trace.get_tracer("test"),
        )

    @asynccontextmanager
    async def fetching(
        self,
        keys: Sequence[bytes],
        *,
        num_promised: int = 0,
        num_exact: int = 0,
        urgency_s: float = 0.0,
    ) -> AsyncIterator[Fetch]:
        promise, place = Promise(num_promised, num_exact), Place(urgency_s)
        async with self.fetcher.fetching(keys, promise, place, 128 * len(keys) + 1) as fetch:
            yield fetch

    async def take_all(self, fetch: Fetch) -> list[bytes]:
        """The blocks' content, as a prompt that has its pages takes them."""
        self.fetcher.note_pages(fetch)
        found = []
        while (group := await self.fetcher.next(fetch)) is not None:
            assert group.first == len(found)
            found += [block.array[:2].tobytes() for block in group.blocks]
            self.fetcher.release(group)
        return found

    async def read(self, keys: Sequence[bytes], **options) -> tuple[list[bytes], Fetch]:
        async with self.fetching(keys, **options) as fetch:
            return await self.take_all(fetch), fetch


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
    reader = Reader(Store(*stored, corrupt=corrupt))
    found, fetch = await reader.read(KEYS, num_promised=num_promised)
    assert (found, fetch.missing, fetch.corrupt) == (KEYS[:num_blocks], missing, bad)
    assert reader.host.num_used == 0


@pytest.mark.parametrize("num_stored", [7, 8, 9, 16, 20, 100])
async def test_a_long_prefix_goes_through_little_memory_in_groups(num_stored):
    keys = keys_of(0, 100)
    reader = Reader(Store(*keys[:num_stored]))
    found, fetch = await reader.read(keys, num_promised=100)
    assert (found, fetch.missing) == (keys[:num_stored], keys[num_stored:])
    assert max(len(read) for read in reader.store.reads) <= GROUP
    assert reader.host.num_used == 0


async def test_what_is_in_host_memory_is_not_read_again():
    reader = Reader(Store(*KEYS))
    first, second = await asyncio.gather(reader.read(KEYS), reader.read(KEYS))
    third = await reader.read(KEYS)
    assert first[0] == second[0] == third[0] == KEYS
    assert sum(map(len, reader.store.reads)) == len(KEYS)
    reader.store.keys.discard(KEYS[2])  # what the store has lost is lost
    assert (await reader.read(KEYS))[0] == KEYS[:2]


async def test_what_was_read_before_it_was_exact_is_read_again_for_who_is_promised_exact_blocks():
    reader = Reader(Store(*KEYS))
    await reader.read(KEYS)
    assert (await reader.read(KEYS, num_exact=2))[0] == KEYS
    assert [key for read in reader.store.reads[1:] for key in read] == KEYS[:2]


async def test_a_block_that_is_not_as_exact_as_promised_ends_the_hit():
    reader = Reader(Store(*KEYS))
    reader.store.replayed = {KEYS[3]}
    for num_exact, num_blocks in ((0, 6), (3, 6), (4, 3), (6, 3)):
        found, fetch = await reader.read(KEYS, num_promised=6, num_exact=num_exact)
        assert (found, fetch.missing, fetch.corrupt) == (KEYS[:num_blocks], [], [])


async def test_a_cancel_waits_for_no_read_and_frees_everything_once_it_ends():
    reader = Reader(Store(*KEYS))
    reader.store.gate.clear()
    reading = asyncio.create_task(reader.read(KEYS))
    await until(lambda: reader.store.reads)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reader.host.num_used == len(KEYS)
    reader.store.gate.set()
    await until(lambda: reader.host.num_used == 0)
    assert (await reader.read(KEYS))[0] == KEYS


async def test_a_read_that_hangs_is_given_up():
    reader = Reader(Store(*KEYS), cost=QUICK)
    reader.store.gate.clear()
    found, _ = await reader.read(KEYS)
    assert found == []
    assert reader.counts.late_blocks_total == len(KEYS)
    reader.store.gate.set()
    await until(lambda: reader.host.num_used == 0)


async def test_what_was_given_up_holds_no_memory_while_its_prompt_is_computed():
    keys = keys_of(0, 5 * GROUP)
    reader = Reader(Store(*keys), cost=QUICK)
    reader.store.gate.clear()
    async with reader.fetching(keys) as fetch:
        assert await reader.take_all(fetch) == []
        reader.store.gate.set()
        await until(lambda: reader.host.num_used == 0)


async def test_what_is_sooner_computed_is_not_read():
    reader = Reader(Store(*KEYS, *keys_of(1, 6)), cost=QUICK)
    assert (await reader.read(KEYS))[0] == KEYS  # nothing is measured yet
    assert (await reader.read(keys_of(1, 6)))[0] == []
    assert reader.counts.left_out_blocks_total == 6


async def test_what_a_relay_has_not_the_own_store_has():
    reader = Reader(Store(*KEYS, *keys_of(1, 6)))
    await reader.read(keys_of(1, 6))  # the own rate is known now
    reader.others.keys = {KEYS[0], KEYS[3]}
    assert (await reader.read(KEYS))[0] == KEYS
    assert reader.counts.relayed_blocks_total == 2
    assert reader.store.reads[1:] == [[KEYS[1], KEYS[2], KEYS[4], KEYS[5]]]


async def test_a_block_that_could_not_be_read_but_is_there_is_not_called_damaged():
    store = Store(*KEYS)
    reader = Reader(store)
    store.get_many = lambda fingerprint, wanted: [key != KEYS[2] for key, _ in wanted]
    _, fetch = await reader.read(KEYS, num_promised=6)
    assert (fetch.num_done, fetch.missing, fetch.corrupt) == (2, [], [])


async def test_the_urgent_are_read_first():
    prompts = [keys_of(number, 2) for number in range(NUM_READERS + 3)]
    reader = Reader(Store(*chain(*prompts)))
    reader.store.gate.clear()
    urgencies_s = [0.0] * NUM_READERS + [3.0, 1.0, 2.0]
    reading = []
    for keys, urgency_s in zip(prompts, urgencies_s, strict=True):
        reading.append(asyncio.create_task(reader.read(keys, urgency_s=urgency_s)))
        if len(reading) <= NUM_READERS:
            await until(lambda: len(reader.store.reads) == len(reading))
    await until(lambda: reader.fetcher.num_waiting == 3)
    reader.store.gate.set()
    assert [found for found, _ in await asyncio.gather(*reading)] == prompts
    order = [prompts.index(read) for read in reader.store.reads[NUM_READERS:]]
    assert order == [NUM_READERS + 1, NUM_READERS + 2, NUM_READERS]


async def test_prompts_without_pages_leave_memory_to_those_that_have_them():
    prompts = [keys_of(number, 40) for number in range(4)]
    reader = Reader(Store(*chain(*prompts)), num_host=4 * GROUP)
    async with (
        reader.fetching(prompts[0]),
        reader.fetching(prompts[1]),
        reader.fetching(prompts[2]) as early,
    ):
        await until(lambda: reader.host.num_used == 2 * GROUP)
        assert (await reader.read(prompts[3]))[0] == prompts[3]
        assert reader.host.num_used <= 2 * GROUP
        assert await reader.take_all(early) == prompts[2]
    await until(lambda: reader.host.num_used == 0)
