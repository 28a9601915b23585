"""Images share steps up to a bound, are encoded once, and fail alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch
from rorqual_runtime.errors import Internal, NoCapacity, StaleTicket
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors import TensorPlane
from rorqual_vision.cache import EmbeddingCache, Embeddings
from rorqual_vision.encoder import Encoder
from rorqual_vision.shelf import Shelf

from tests.support.waiting import WAIT_S, until


class FakeTower:
    """Rows that say how large the image is; waits for `go` at every step."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.num_begun = 0
        self.batches: list[int] = []

    def encode(self, images: Sequence[np.ndarray]) -> list[torch.Tensor]:
        self.num_begun += 1
        assert self.go.wait(WAIT_S)
        self.batches.append(len(images))
        if any(image.max() == 255 for image in images):
            raise ValueError("broken")
        return [torch.full((2, 3), float(image.shape[0]), dtype=torch.bfloat16) for image in images]


@asynccontextmanager
async def encoder(tower: FakeTower, max_queued: int = 10_000) -> AsyncIterator[Encoder]:
    running = Encoder(tower, patch=14, step_work=10, max_queued_work=max_queued)
    running.start()
    try:
        yield running
    finally:
        tower.go.set()
        await running.close()


def pixels(num_patches: int, value: int = 0) -> np.ndarray:
    return np.full((14 * num_patches, 14, 3), value, dtype=np.uint8)


async def test_small_images_share_a_step_and_large_ones_run_alone() -> None:
    tower = FakeTower()
    tower.go.clear()
    async with encoder(tower) as running:
        first = asyncio.create_task(running.encode(pixels(50)))
        await until(lambda: tower.num_begun)
        others = [asyncio.create_task(running.encode(pixels(n))) for n in (3, 3, 4, 1, 200, 9)]
        await until(lambda: running.queued_work == 50 + 11 + 206 + 9)
        tower.go.set()
        made = await asyncio.gather(first, *others)
        assert tower.batches == [1, 3, 1, 1, 1]
        assert running.queued_work == 0
        assert [(m.num_tokens, m.hidden, m.dtype, m.num_bytes) for m in made] == [
            (2, 3, "bfloat16", 12)
        ] * 7


async def test_a_broken_image_fails_alone() -> None:
    tower = FakeTower()
    tower.go.clear()
    async with encoder(tower) as running:
        first = asyncio.create_task(running.encode(pixels(20)))
        await until(lambda: tower.num_begun)
        tasks = [asyncio.create_task(running.encode(pixels(2, v))) for v in (1, 255, 2)]
        await until(lambda: len(running._line) == len(tasks))
        tower.go.set()
        results = await asyncio.gather(first, *tasks, return_exceptions=True)
        assert [isinstance(result, Internal) for result in results] == [False, False, True, False]


async def test_too_much_waiting_is_refused() -> None:
    tower = FakeTower()
    tower.go.clear()
    async with encoder(tower, max_queued=30) as running:
        waiting = asyncio.create_task(running.encode(pixels(25)))
        await until(lambda: running.queued_work)
        with pytest.raises(NoCapacity):
            await running.encode(pixels(10))
        tower.go.set()
        await waiting
        assert (await running.encode(pixels(100))).num_tokens == 2


def made_of(num_bytes: int) -> Embeddings:
    return Embeddings(np.zeros(num_bytes, dtype=np.uint8), "bfloat16", 1, num_bytes // 2)


async def test_an_image_is_made_once_however_many_ask_and_who_leaves_stops_nothing() -> None:
    cache, num_made, go = EmbeddingCache(100), 0, asyncio.Event()

    async def make() -> Embeddings:
        nonlocal num_made
        num_made += 1
        await go.wait()
        return made_of(10)

    tasks = [asyncio.create_task(cache.get(b"a", make)) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(result is results[1] for result in results[1:])
    assert (await cache.get(b"a", make)) is results[1]
    assert num_made == 1


async def test_the_cache_is_bounded_in_bytes_and_drops_the_least_recent() -> None:
    cache, num_made = EmbeddingCache(100), 0

    async def make(num_bytes: int = 40) -> Embeddings:
        nonlocal num_made
        num_made += 1
        return made_of(num_bytes)

    for digest in (b"a", b"b", b"a", b"c"):
        await cache.get(digest, make)
    assert cache.num_bytes == 80
    assert (b"a" in cache, b"b" in cache, b"c" in cache) == (True, False, True)
    await cache.get(b"large", lambda: make(200))
    assert b"large" not in cache
    assert cache.num_bytes == 80


async def test_a_failure_is_told_to_all_and_tried_again_next_time() -> None:
    cache = EmbeddingCache(100)

    async def fail() -> Embeddings:
        await asyncio.sleep(0)
        raise NoCapacity("full")

    results = await asyncio.gather(
        *(cache.get(b"a", fail) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, NoCapacity) for result in results)

    async def succeed() -> Embeddings:
        return made_of(4)

    assert (await cache.get(b"a", succeed)).num_bytes == 4


async def test_a_full_arena_gives_up_the_tickets_asked_for_longest_ago() -> None:
    settings = RuntimeSettings(shm_bytes=1 << 20)
    async with await TensorPlane.open(settings, "vision-1", 1, "here") as tensors:
        shelf = Shelf(tensors, lease_s=60)
        images = [
            Embeddings(np.full(300_000, i, np.uint8), "bfloat16", 150, 1000) for i in range(7)
        ]
        first = await shelf.put(b"0", images[0])
        assert await shelf.put(b"0", images[0]) is first
        tickets = [await shelf.put(bytes([i]), image) for i, image in enumerate(images)]
        assert (await tensors.fetch(tickets[-1]) == 6).all()
        for stale in (first, tickets[0]):
            with pytest.raises(StaleTicket):
                await tensors.fetch(stale)
        again = await shelf.put(bytes([0]), images[0])
        assert (await tensors.fetch(again) == 0).all()
        with pytest.raises(NoCapacity):
            await shelf.put(b"large", Embeddings(np.zeros(2 << 20, np.uint8), "uint8", 1, 2 << 20))
        assert tensors.num_held == 0
        assert not shelf.make_room()
