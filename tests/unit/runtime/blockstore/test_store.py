"""What the block store promises to one process, with the clock in the test's hand."""

import os
import random
import shutil
import threading

import numpy as np
import pytest
from rorqual_runtime.blockstore import BlockStore, BlockStoreBackend
from rorqual_runtime.blockstore import eviction as eviction_module
from rorqual_runtime.blockstore.record import HEADER_BYTES
from rorqual_runtime.clock import ManualClock

SIZE = 10_000
RECORD = SIZE + HEADER_BYTES
FP = "model-a/layout-1"


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def block(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def got(store: BlockStoreBackend, number: int, fingerprint: str = FP) -> bytes | None:
    into = bytearray(SIZE)
    return bytes(into) if store.get(fingerprint, key_of(number), into) else None


def record_files(root):
    return sorted(path for path in root.glob("[0-9a-f][0-9a-f]/*"))


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(tmp_path, clock):
    store = BlockStore(tmp_path, 100 * RECORD, clock=clock)
    yield store
    store.close()


def test_put_get_has_delete(store):
    assert got(store, 1) is None and not store.has(FP, key_of(1))
    assert store.put(FP, key_of(1), block(1))
    assert store.has(FP, key_of(1)) and got(store, 1) == block(1)
    assert got(store, 1, "model-b") is None and not store.has("model-b", key_of(1))
    assert store.delete(FP, key_of(1)) and not store.delete(FP, key_of(1))
    assert got(store, 1) is None
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.puts, stats.corrupt) == (1, 3, 1, 0)
    assert (stats.num_bytes, stats.num_blocks) == (0, 0)


def test_arrays_are_buffers_too(store):
    data = np.arange(100, dtype=np.float32).reshape(10, 10)
    assert store.put(FP, b"k", data)
    into = np.zeros_like(data)
    assert store.get(FP, b"k", into) and np.array_equal(into, data)


def test_the_same_block_again_is_not_written_again(store):
    assert store.put(FP, key_of(1), block(1)) and store.put(FP, key_of(1), block(1))
    stats = store.stats()
    assert (stats.puts, stats.duplicates, stats.num_bytes) == (1, 1, RECORD)


def damage(path, kind):
    raw = bytearray(path.read_bytes())
    if kind == "payload bit":
        raw[HEADER_BYTES + 77] ^= 1
    elif kind == "header bit":
        raw[30] ^= 1
    elif kind == "truncated":
        del raw[-1]
    elif kind == "truncated header":
        del raw[50:]
    elif kind == "empty":
        raw.clear()
    elif kind == "longer":
        raw += b"x"
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "kind", ["payload bit", "header bit", "truncated", "truncated header", "empty", "longer"]
)
def test_damage_is_a_miss_and_the_file_goes(store, tmp_path, kind):
    store.put(FP, key_of(1), block(1))
    (path,) = record_files(tmp_path)
    damage(path, kind)
    assert got(store, 1) is None
    assert not path.exists()
    assert store.stats().corrupt == 1
    assert store.put(FP, key_of(1), block(1)) and got(store, 1) == block(1)


def test_swapped_files_are_found(store, tmp_path):
    for number in (1, 2):
        store.put(FP, key_of(number), block(number))
    store.put("model-b", key_of(1), block(3))
    first, second, third = record_files(tmp_path)
    spare = tmp_path / "spare"
    shutil.move(first, spare)
    shutil.move(second, first)
    shutil.move(third, second)
    shutil.move(spare, third)
    assert [got(store, 1), got(store, 2), got(store, 1, "model-b")] == [None, None, None]
    assert store.stats().corrupt == 3 and not record_files(tmp_path)


def test_a_buffer_of_another_size_is_a_miss(store):
    store.put(FP, key_of(1), block(1))
    assert not store.get(FP, key_of(1), bytearray(SIZE - 1))
    assert store.stats().corrupt == 1


async def test_a_block_expires_at_its_time(store, clock, tmp_path):
    store.put(FP, key_of(1), block(1), ttl_s=100)
    store.put(FP, key_of(2), block(2), ttl_s=1000)
    store.put(FP, key_of(3), block(3))
    await clock.advance(99)
    assert got(store, 1) == block(1)
    await clock.advance(2)
    assert not store.has(FP, key_of(1)) and got(store, 1) is None
    assert got(store, 2) == block(2) and got(store, 3) == block(3)
    assert store.stats().expired == 1 and len(record_files(tmp_path)) == 2


async def test_putting_again_extends_a_life_that_is_half_over(store, clock):
    store.put(FP, key_of(1), block(1), ttl_s=100)
    await clock.advance(60)
    store.put(FP, key_of(1), block(1), ttl_s=100)
    await clock.advance(60)
    assert got(store, 1) == block(1)
    assert store.stats().num_bytes == RECORD


async def test_maintenance_deletes_what_has_expired(store, clock, tmp_path):
    for number in range(20):
        store.put(FP, key_of(number), block(number), ttl_s=10 if number % 2 else 1000)
    for path in record_files(tmp_path)[:6]:
        os.utime(path)  # a lost hint must not matter
    await clock.advance(11)
    for _ in range(256):
        store.maintain()
    assert store.stats().expired == 10 and store.stats().num_blocks == 10
    assert all(got(store, n) == (None if n % 2 else block(n)) for n in range(20))


async def test_over_capacity_the_least_recently_used_go(store, clock):
    for number in range(100):
        assert store.put(FP, key_of(number), block(number))
        await clock.advance(1)
    await clock.advance(120)
    assert got(store, 0) == block(0)
    await clock.advance(1)
    assert store.put(FP, key_of(100), block(100))
    assert got(store, 0) == block(0) and got(store, 100) == block(100)
    assert got(store, 1) is None and got(store, 99) == block(99)
    stats = store.stats()
    assert 1 <= stats.evicted <= 4 and stats.num_bytes <= stats.capacity_bytes


async def test_the_expired_go_before_the_old(store, clock):
    for number in range(100):
        store.put(FP, key_of(number), block(number), ttl_s=50 if number >= 90 else None)
    await clock.advance(60)
    assert store.put(FP, key_of(100), block(100))
    assert all(got(store, number) for number in range(90))
    assert store.stats().expired == 10 and store.stats().evicted == 0


def test_capacity_is_never_exceeded_and_large_stores_are_sampled(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(eviction_module, "_SAMPLE_FILES", 16)
    store = BlockStore(tmp_path, 40 * RECORD, clock=clock)
    for number in range(300):
        assert store.put(FP, key_of(number), block(number))
        assert len(record_files(tmp_path)) <= 40 if number % 20 == 0 else True
    on_disk = sum(path.stat().st_size for path in record_files(tmp_path))
    assert store.stats().num_bytes == on_disk <= 40 * RECORD
    store.close()


def test_a_block_larger_than_the_store_is_refused(tmp_path):
    store = BlockStore(tmp_path, SIZE)
    assert not store.put(FP, key_of(1), block(1))
    assert store.stats().put_failures == 1
    store.close()


def test_counters_survive_a_restart_and_are_made_anew_when_lost(tmp_path):
    with_counters = BlockStore(tmp_path, 100 * RECORD)
    for number in range(10):
        with_counters.put(FP, key_of(number), block(number))
    with_counters.close()
    for spoil in (lambda: None, (tmp_path / "usage-1").unlink):
        spoil()
        store = BlockStore(tmp_path, 100 * RECORD)
        assert (store.stats().num_bytes, store.stats().num_blocks) == (10 * RECORD, 10)
        store.close()


def test_files_deleted_behind_its_back_are_noticed(store, tmp_path):
    for number in range(10):
        store.put(FP, key_of(number), block(number))
    for path in record_files(tmp_path)[:5]:
        path.unlink()
    for _ in range(256):
        store.maintain()
    assert store.stats().num_blocks == 5


@pytest.mark.parametrize("broken", ["shard", "root"])
def test_storage_failures_are_misses_and_failed_puts(store, tmp_path, broken):
    store.put(FP, key_of(1), block(1))
    place = tmp_path if broken == "root" else record_files(tmp_path)[0].parent
    shutil.rmtree(place)
    place.touch()  # a file where a directory should be
    assert got(store, 1) is None
    assert not store.put(FP, key_of(1), block(1))
    assert not store.has(FP, key_of(1)) and not store.delete(FP, key_of(1))
    store.maintain()
    assert store.stats().put_failures == 1


def test_a_deleted_store_is_begun_again(store, tmp_path):
    assert store.put(FP, key_of(1), block(1))
    shutil.rmtree(tmp_path)
    assert got(store, 1) is None
    assert store.put(FP, key_of(1), block(1))
    assert got(store, 1) == block(1)


def test_threads_share_a_store(store):
    wrong = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(150):
            number = dice.randrange(40)
            if dice.random() < 0.4:
                store.put(FP, key_of(number), block(number))
            elif dice.random() < 0.1:
                store.delete(FP, key_of(number))
            elif (data := got(store, number)) is not None and data != block(number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.stats().corrupt == 0
