"""What the block store promises to one process, with the clock in the test's hand."""

import os
import random
import shutil
import threading

import numpy as np
import pytest
from rorqual_runtime.blockstore import BlockMark, ForgottenBlock, Lifetime, Provenance, posix_io
from rorqual_runtime.blockstore.size_classes import SizeClasses
from rorqual_runtime.blockstore.uring import Uring
from rorqual_runtime.clock import ManualClock

from tests.support.blocks import (
    FINGERPRINT,
    SIZE,
    SLOT,
    block,
    data_files,
    find_record,
    flip_bit,
    got,
    index_files,
    key_of,
    open_store,
    put,
)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def gone():
    return []


@pytest.fixture
def store(tmp_path, clock, gone):
    store = open_store(tmp_path, 100 * SLOT, clock=clock, on_forgotten=gone.extend)
    yield store
    store.close()


def forgotten(number, reason):
    return ForgottenBlock(FINGERPRINT, key_of(number), reason)


def test_what_is_stored_of_a_prefix_ends_at_the_first_gap(store):
    assert put(store, 1) and put(store, 2) and put(store, 4)
    assert store.num_stored(FINGERPRINT, [key_of(number) for number in (1, 2, 3, 4)]) == 2
    assert store.num_stored(FINGERPRINT, [key_of(number) for number in (1, 2)]) == 2
    assert store.num_stored(FINGERPRINT, []) == 0


def test_put_get_has_delete(store):
    assert got(store, 1) is None and not store.has(FINGERPRINT, key_of(1))
    assert put(store, 1)
    assert store.has(FINGERPRINT, key_of(1)) and got(store, 1) == block(1)
    assert got(store, 1, "model-b") is None and not store.has("model-b", key_of(1))
    assert store.delete(FINGERPRINT, key_of(1)) and not store.delete(FINGERPRINT, key_of(1))
    assert got(store, 1) is None
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.puts, stats.corrupt) == (1, 3, 1, 0)
    assert (stats.num_bytes, stats.num_blocks) == (0, 0)


@pytest.mark.parametrize("io_mode", ["direct", "buffered"])
def test_a_batch_takes_memory_of_any_alignment_and_survives_damage(tmp_path, batches, io_mode):
    """More blocks than are moved at once, of two sizes, some of them harmed on disk."""
    store = open_store(tmp_path, 1 << 26, io_mode=io_mode)
    sizes = [SIZE, 8192]
    data = {n: block(n, sizes[n % 2]) for n in range(150)}
    spare = np.zeros(8192 * 151, np.uint8)
    start = -spare.__array_interface__["data"][0] % 4096
    targets = {
        n: spare[start + n * 8192 :][:8192] if n % 2 else bytearray(SIZE) for n in range(150)
    }
    for n in range(1, 150, 2):
        targets[n][:] = np.frombuffer(data[n], np.uint8)
    own = [(key_of(n), targets[n] if n % 2 else data[n]) for n in range(150)]
    assert store.put_many(FINGERPRINT, [*own, own[3]]) == [True] * 151
    assert (store.stats().puts, store.stats().duplicates) == (150, 1)
    spare[:] = 0
    harmed = {4, 5, 149}
    for n in harmed:
        path, offset = find_record(tmp_path, key_of(n))
        flip_bit(path, offset + 4096 + n)
    hits = store.get_many(FINGERPRINT, [(key_of(n), targets[n]) for n in range(150)])
    assert hits == [n not in harmed for n in range(150)]
    assert all(bytes(targets[n]) == data[n] for n in range(150) if n not in harmed)
    assert store.stats().corrupt == 3 and store.stats().hits == 147
    store.close()


def test_a_batch_larger_than_the_store_keeps_what_there_is_room_for(tmp_path, batches):
    store = open_store(tmp_path, 40 * SLOT)
    kept = store.put_many(FINGERPRINT, [(key_of(n), block(n)) for n in range(120)])
    assert all(kept)
    found = [got(store, n) for n in range(120)]
    assert sum(data is not None for data in found) == store.stats().num_blocks > 20
    assert all(data in (None, block(n)) for n, data in enumerate(found))
    store.close()


@pytest.mark.parametrize("io_mode", ["direct", "buffered"])
@pytest.mark.parametrize("shape", [(100,), (128, 1024), (1025,)])
def test_arrays_of_any_size_and_alignment(tmp_path, io_mode, shape):
    store = open_store(tmp_path, 1 << 28, io_mode=io_mode)
    data = np.random.default_rng(0).random(shape, np.float32)
    key = key_of(1)
    assert store.put(FINGERPRINT, key, data)
    into = np.zeros_like(data)
    assert store.get(FINGERPRINT, key, into) and np.array_equal(into, data)
    spare = np.zeros(data.nbytes + 8192, np.uint8)
    start = -spare.__array_interface__["data"][0] % 4096
    aligned = spare[start : start + data.nbytes].view(np.float32).reshape(shape)
    assert store.get(FINGERPRINT, key, aligned) and np.array_equal(aligned, data)
    assert store.put(FINGERPRINT, key_of(2), aligned)
    assert store.get(FINGERPRINT, key_of(2), into) and np.array_equal(into, data)
    store.close()


@pytest.fixture(params=["ring", "threads"])
def batches(request, monkeypatch):
    """How many records move at once: both ways give the same."""
    if request.param == "threads":

        def refuse(*_):
            raise PermissionError("no io_uring for you")

        monkeypatch.setattr(posix_io, "RingIo", refuse)
    else:
        try:
            Uring(2)
        except OSError as error:
            pytest.skip(f"no io_uring here: {error}")


def test_a_batch_is_its_blocks(store, batches):
    kept = store.put_many(FINGERPRINT, [(key_of(n), block(n)) for n in range(20)])
    assert kept == [True] * 20
    buffers = {n: bytearray(SIZE) for n in (3, 77, 19)}
    hits = store.get_many(FINGERPRINT, [(key_of(n), into) for n, into in buffers.items()])
    assert hits == [True, False, True]
    assert buffers[3] == block(3) and buffers[19] == block(19)
    depths = {listing.key: listing.mark.depth for listing in store.listing()}
    assert depths == {key_of(n): n for n in range(20)}
    assert store.get_many(FINGERPRINT, []) == store.put_many(FINGERPRINT, []) == []


def test_the_same_block_again_is_not_written_again(store):
    assert put(store, 1) and put(store, 1)
    stats = store.stats()
    assert (stats.puts, stats.duplicates, stats.num_bytes) == (1, 1, SLOT)


def test_an_exact_block_takes_the_place_of_a_replayed_one(store):
    replayed = BlockMark(Provenance.REPLAYED, Lifetime.AGENT, depth=7)
    assert put(store, 1, mark=replayed)
    assert [listing.mark for listing in store.listing()] == [replayed]
    exact = replayed._replace(provenance=Provenance.EXACT)
    assert put(store, 1, mark=exact)
    assert put(store, 1, mark=replayed)
    assert [listing.mark for listing in store.listing()] == [exact]
    assert store.stats().puts == 2 and got(store, 1) == block(1)


def test_of_blocks_that_should_be_exact_only_those_that_are_count(store):
    for number in range(4):
        provenance = Provenance.REPLAYED if number == 2 else Provenance.EXACT
        assert put(store, number, mark=BlockMark(provenance))
    keys = [key_of(number) for number in range(4)]
    found = [store.num_stored(FINGERPRINT, keys, num_exact=number) for number in (0, 2, 3, 9)]
    assert found == [4, 4, 2, 2]


def test_a_listing_says_what_was_put(store, clock):
    store.put("model-b", key_of(5), block(5), ttl_s=100, mark=BlockMark(lifetime=Lifetime.CHAT))
    (listing,) = store.listing()
    assert (listing.fingerprint, listing.key, listing.num_bytes) == ("model-b", key_of(5), SIZE)
    assert listing.created_unix_s == listing.last_used_unix_s == clock.now_unix_s()
    assert listing.expires_unix_s == clock.now_unix_s() + 100
    assert (listing.num_uses, listing.mark) == (0, BlockMark(lifetime=Lifetime.CHAT))


def test_keys_have_sixteen_bytes(store):
    with pytest.raises(ValueError, match="16 bytes"):
        store.put(FINGERPRINT, b"short", b"data")


@pytest.mark.parametrize("where", ["header", "payload", "padding of the header"])
def test_a_flipped_bit_is_a_miss_and_the_block_goes(store, tmp_path, gone, where):
    put(store, 1)
    path, offset = find_record(tmp_path, key_of(1))
    flip_bit(path, offset + {"header": 30, "payload": 5000, "padding of the header": 4000}[where])
    if where == "padding of the header":  # holds nothing
        assert got(store, 1) == block(1)
        return
    assert got(store, 1) is None
    assert store.stats().corrupt == 1 and gone == [forgotten(1, "corrupt")]
    assert not store.has(FINGERPRINT, key_of(1))
    assert put(store, 1) and got(store, 1) == block(1)


def test_swapped_slots_are_found(tmp_path, gone):
    store = open_store(tmp_path, 3200 * SLOT, on_forgotten=gone.extend)
    for number in (1, 2):
        put(store, number)
    (path,) = data_files(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[SLOT : 2 * SLOT] + raw[:SLOT] + raw[2 * SLOT :])
    assert [got(store, 1), got(store, 2)] == [None, None]
    assert store.stats().corrupt == 2 and len(gone) == 2
    store.close()


@pytest.mark.parametrize("cut", [0, 5000, SLOT + 4096])
def test_a_truncated_segment_loses_what_was_cut_off(tmp_path, cut):
    store = open_store(tmp_path, 3200 * SLOT)
    for number in range(4):
        put(store, number)
    (path,) = data_files(tmp_path)
    os.truncate(path, cut)
    hits = [got(store, number) for number in range(4)]
    assert hits == [block(0) if cut > SLOT else None, None, None, None]
    assert store.stats().corrupt == 4 - (cut > SLOT)
    assert put(store, 9) and got(store, 9) == block(9)
    store.close()


@pytest.mark.parametrize("harm", ["truncate", "header", "entries", "delete"])
def test_a_damaged_index_is_at_most_lost_blocks(tmp_path, harm):
    store = open_store(tmp_path, 3200 * SLOT)
    for number in range(10):
        put(store, number)
    store.close()
    (path,) = index_files(tmp_path)
    if harm == "truncate":
        os.truncate(path, 4096 + 64 * 5)
    elif harm == "header":
        flip_bit(path, 9)
    elif harm == "entries":
        flip_bit(path, 4096 + 64 * 3 + 20)
    else:
        path.unlink()
    store = open_store(tmp_path, 3200 * SLOT)
    num_left = sum(got(store, number) == block(number) for number in range(10))
    assert num_left == {"truncate": 5, "header": 0, "entries": 9, "delete": 0}[harm]
    assert all(put(store, number) for number in range(20))
    assert all(got(store, number) == block(number) for number in range(20))
    assert len(data_files(tmp_path)) == 1
    store.close()


@pytest.mark.parametrize("harm", ["delete", "damage"])
def test_a_lost_map_is_made_anew_from_the_index(tmp_path, harm):
    store = open_store(tmp_path, 100 * SLOT)
    for number in range(50):
        put(store, number)
    store.close()
    (path,) = tmp_path.glob("slots-*/map")
    if harm == "delete":
        path.unlink()
    else:
        flip_bit(path, 3)
    store = open_store(tmp_path, 100 * SLOT)
    assert all(got(store, number) == block(number) for number in range(50))
    store.close()


def test_another_size_is_a_miss_and_harms_nothing(store):
    put(store, 1)
    assert not store.get(FINGERPRINT, key_of(1), bytearray(SIZE - 1))
    assert not store.get(FINGERPRINT, key_of(1), bytearray(SIZE * 2))
    assert store.stats().corrupt == 0 and got(store, 1) == block(1)


async def test_a_block_expires_at_its_time(store, clock, gone):
    put(store, 1, ttl_s=100)
    put(store, 2, ttl_s=1000)
    put(store, 3)
    await clock.advance(99)
    assert got(store, 1) == block(1)
    await clock.advance(2)
    assert not store.has(FINGERPRINT, key_of(1)) and got(store, 1) is None
    assert got(store, 2) == block(2) and got(store, 3) == block(3)
    assert store.stats().expired == 1 and gone == [forgotten(1, "expired")]


async def test_putting_again_extends_a_life_that_is_half_over(store, clock):
    put(store, 1, ttl_s=100)
    await clock.advance(60)
    put(store, 1, ttl_s=100)
    await clock.advance(60)
    assert got(store, 1) == block(1) and store.stats().puts == 1
    put(store, 1)
    await clock.advance(1e7)
    assert got(store, 1) == block(1)


async def test_maintenance_removes_what_has_expired_and_empty_segments(store, clock, tmp_path):
    for number in range(20):
        put(store, number, ttl_s=10 if number < 10 else 1000)
    await clock.advance(11)
    for _ in range(300):
        store.maintain()
    assert store.stats().expired == 10 and store.stats().num_blocks == 10
    assert [got(store, n) for n in range(20)] == [None if n < 10 else block(n) for n in range(20)]
    assert len(data_files(tmp_path)) <= 11


async def test_a_clock_set_back_keeps_blocks_but_not_for_ever(tmp_path, clock):
    store = open_store(tmp_path, 100 * SLOT, clock=clock)
    put(store, 1, ttl_s=100)
    for number, hours in ((2, 12), (3, 48)):
        ahead = open_store(tmp_path, 100 * SLOT, clock=ManualClock(1.8e9 + hours * 3600))
        put(ahead, number, ttl_s=100)
        ahead.close()
    assert [got(store, n) for n in (1, 2, 3)] == [block(1), block(2), None]
    await clock.advance(13 * 3600)
    assert [got(store, n) for n in (1, 2, 3)] == [None, None, None]
    store.close()


async def test_over_capacity_the_least_recently_used_go(store, clock, gone):
    for number in range(100):
        assert put(store, number)
        await clock.advance(60)
    await clock.advance(120)
    assert got(store, 0) == block(0)
    await clock.advance(60)
    assert put(store, 100)
    assert got(store, 0) == block(0) and got(store, 100) == block(100)
    assert got(store, 1) is None and got(store, 99) == block(99)
    stats = store.stats()
    assert 1 <= stats.evicted == len(gone) <= 4 and stats.num_bytes <= stats.capacity_bytes
    assert forgotten(1, "evicted") in gone


async def test_held_blocks_stay_whoever_makes_room_until_the_hold_ends(store, clock, tmp_path):
    for number in range(100):
        assert put(store, number, ttl_s=100_000)
        await clock.advance(60)
    writer = open_store(tmp_path, 100 * SLOT, clock=clock)
    held = [key_of(number) for number in range(10)]
    store.hold(FINGERPRINT, [*held, key_of(1000)], clock.now_unix_s() + 60)
    store.hold(FINGERPRINT, held, clock.now_unix_s() + 30)  # makes none shorter
    assert got(store, 0) == block(0)  # nor does a read
    await clock.advance(45)
    for number in range(200, 300):
        put(writer, number, ttl_s=100_000)
    writer.put_many("model-b", [(key_of(n), block(n, 3 * SIZE)) for n in range(300, 310)])
    assert [got(writer, number) for number in range(10)] == [block(n) for n in range(10)]
    assert got(store, 10) is None
    await clock.advance(1000)
    for number in range(400, 500):
        assert put(writer, number, ttl_s=100_000)
    assert sum(got(writer, number) is not None for number in range(10)) < 5
    writer.close()


async def test_a_full_store_of_held_blocks_takes_no_more_for_ten_minutes_at_most(store, clock):
    for number in range(100):
        put(store, number)
    store.hold(FINGERPRINT, [key_of(n) for n in range(100)], clock.now_unix_s() + 1e6)
    await clock.advance(590)
    assert not put(store, 100)
    assert all(got(store, number) == block(number) for number in range(100))
    await clock.advance(11)
    assert put(store, 100)


async def test_a_hold_counts_as_a_use_once(store, clock):
    put(store, 1, ttl_s=500)
    for _ in range(3):
        store.hold(FINGERPRINT, [key_of(1)], clock.now_unix_s() + 60)
        await clock.advance(10)
    (listing,) = store.listing()
    assert listing.num_uses == 1 and listing.last_used_unix_s == clock.now_unix_s() + 50
    await clock.advance(600)
    assert got(store, 1) is None  # it expires all the same


async def test_who_only_checks_a_block_does_not_use_it(store, clock):
    put(store, 1)
    await clock.advance(600)
    assert store.get(FINGERPRINT, key_of(1), bytearray(SIZE), is_use=False)
    assert [listing.num_uses for listing in store.listing()] == [0]
    assert got(store, 1) and [listing.num_uses for listing in store.listing()] == [1]


def test_a_model_whose_name_is_lost_can_still_be_handled(store, tmp_path, clock):
    put(store, 1)
    (name,) = (tmp_path / "fingerprints").iterdir()
    name.unlink()
    fresh = open_store(tmp_path, 100 * SLOT, clock=clock)
    (listing,) = fresh.listing()
    assert listing.fingerprint == f"unnamed:{name.name}"
    assert fresh.get(listing.fingerprint, listing.key, bytearray(SIZE))
    assert fresh.delete(listing.fingerprint, listing.key) and not list(fresh.listing())
    assert not list((tmp_path / "fingerprints").iterdir())
    fresh.close()


async def test_a_life_is_not_made_longer_where_another_process_may_reuse_the_slot(
    store, tmp_path, clock
):
    """Another entry could be overwritten: the block is written anew instead."""
    put(store, 1, ttl_s=100)
    owner = open_store(tmp_path, 100 * SLOT, clock=clock)
    store.maintain()
    store.maintain()  # lets go of its segment
    assert put(owner, 2)
    await clock.advance(60)
    assert put(store, 1, ttl_s=100)
    await clock.advance(60)
    assert got(store, 1) == block(1) and got(owner, 2) == block(2)
    assert [store.stats().corrupt, owner.stats().corrupt] == [0, 0]
    owner.close()


async def test_the_expired_go_before_the_old(store, clock):
    for number in range(100):
        put(store, number, ttl_s=50 if number >= 90 else None)
        await clock.advance(0.1)
    await clock.advance(60)
    for number in range(100, 105):
        assert put(store, number)
    assert all(got(store, number) for number in range(90))
    assert store.stats().expired >= 5 and store.stats().evicted == 0


def test_capacity_is_never_exceeded(tmp_path, clock):
    store = open_store(tmp_path, 40 * SLOT, clock=clock)
    for number in range(300):
        assert put(store, number)
    on_disk = sum(path.stat().st_size for path in data_files(tmp_path))
    stats = store.stats()
    assert stats.num_bytes <= stats.allocated_bytes == on_disk <= 40 * SLOT
    assert stats.num_blocks + stats.evicted == 300
    store.close()


async def test_a_large_store_is_evicted_by_samples_of_old_blocks(tmp_path, clock):
    store = open_store(tmp_path, 3200 * SLOT, clock=clock, io_mode="buffered")
    tiny = 100
    for number in range(9000):
        store.put(FINGERPRINT, key_of(number), block(number, tiny))
        if number % 100 == 0:
            await clock.advance(60)
    stats = store.stats()
    assert stats.allocated_bytes <= 3200 * SLOT and stats.put_failures == 0
    into = bytearray(tiny)
    num_old = sum(store.get(FINGERPRINT, key_of(n), into) for n in range(2000))
    num_new = sum(store.get(FINGERPRINT, key_of(n), into) for n in range(7000, 9000))
    assert stats.evicted >= 2000
    assert num_new >= 1900 and num_old < 1000
    store.close()


async def test_another_model_gets_the_room_of_one_no_longer_used(store, clock, gone):
    for number in range(100):
        put(store, number)
    await clock.advance(3600)
    big = 3 * SIZE
    for number in range(200, 220):
        assert store.put("model-b", key_of(number), block(number, big))
    into = bytearray(big)
    assert all(store.get("model-b", key_of(number), into) for number in range(200, 220))
    assert store.stats().allocated_bytes <= 100 * SLOT
    assert gone and {block.reason for block in gone} == {"evicted"}


def test_a_block_larger_than_the_store_is_refused(tmp_path):
    store = open_store(tmp_path, SIZE)
    assert not put(store, 1)
    assert store.stats().put_failures == 1
    store.close()


def test_a_smaller_capacity_drops_segments(tmp_path):
    store = open_store(tmp_path, 100 * SLOT)
    for number in range(100):
        put(store, number)
    store.close()
    store = open_store(tmp_path, 50 * SLOT)
    assert put(store, 100)
    store.maintain()
    stats = store.stats()
    assert stats.allocated_bytes <= 50 * SLOT and stats.num_blocks >= 45
    num_right = sum(got(store, number) == block(number) for number in range(101))
    assert num_right == stats.num_blocks
    store.close()


def test_a_larger_capacity_finds_all_that_is_there(tmp_path):
    store = open_store(tmp_path, 50 * SLOT)
    for number in range(50):
        put(store, number)
    store.close()
    store = open_store(tmp_path, 5000 * SLOT)
    assert all(got(store, number) == block(number) for number in range(50))
    store.close()


def test_a_larger_map_put_in_place_by_another_process_is_followed(tmp_path):
    small = open_store(tmp_path, 50 * SLOT)
    assert put(small, 1)
    large = open_store(tmp_path, 50_000 * SLOT)
    assert got(large, 1) == block(1)
    assert put(small, 2)  # as yet in the old map
    small.maintain()
    assert put(small, 3)
    assert [got(small, number) for number in (1, 3)] == [block(1), block(3)]
    assert [got(large, number) for number in (1, 3)] == [block(1), block(3)]
    for store in (small, large):
        store.close()


def test_who_only_reads_drops_nothing_for_its_own_capacity(tmp_path):
    writer, reader = (open_store(tmp_path, number * SLOT) for number in (100, 10))
    assert all(put(writer, number) for number in range(100))
    reader.maintain()
    assert all(got(reader, number) == block(number) for number in range(100))
    for store in (writer, reader):
        store.close()


def test_blocks_survive_a_restart(tmp_path):
    store = open_store(tmp_path, 100 * SLOT)
    for number in range(10):
        put(store, number)
    store.close()
    store = open_store(tmp_path, 100 * SLOT)
    assert store.stats().num_blocks == 10
    assert all(got(store, number) == block(number) for number in range(10))
    store.close()


def test_an_older_format_is_removed_and_foreign_files_are_left_alone(tmp_path, caplog):
    (tmp_path / "usage-1").touch()
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "block").touch()
    (tmp_path / "mine").touch()
    store = open_store(tmp_path, 100 * SLOT)
    assert not (tmp_path / "ab").exists() and not (tmp_path / "usage-1").exists()
    assert (tmp_path / "mine").exists() and "removed" in caplog.text
    (tmp_path / "cd").mkdir()
    store.close()
    open_store(tmp_path, 100 * SLOT).close()
    assert (tmp_path / "cd").exists()


@pytest.mark.parametrize("said", ['{"version": 3, "store_id": "00"}', "unreadable"])
def test_a_later_versions_store_or_an_unreadable_one_is_not_touched(tmp_path, said):
    store = open_store(tmp_path, 100 * SLOT)
    put(store, 1)
    identity = tmp_path / "STORE.json"
    before = identity.read_text()
    if said == "unreadable":
        identity.unlink()
        identity.mkdir()
    else:
        identity.write_text(said)
    with pytest.raises(OSError, match="version 3" if said != "unreadable" else "directory"):
        open_store(tmp_path, 100 * SLOT)
    store.maintain()
    assert got(store, 1) == block(1)
    if said == "unreadable":
        identity.rmdir()
    identity.write_text(before)
    store.maintain()
    assert got(store, 1) == block(1)
    store.close()


def test_a_small_store_takes_little_room(tmp_path):
    store = open_store(tmp_path, 8 << 30)
    put(store, 1)
    assert store.stats().allocated_bytes <= 16 << 20
    store.close()


@pytest.mark.parametrize("broken", ["class", "root"])
def test_storage_failures_are_misses_and_failed_puts(tmp_path, broken):
    place = tmp_path / "store"
    store = open_store(place, 100 * SLOT)
    put(store, 1)
    store.close()
    store = open_store(place, 100 * SLOT)
    spoilt = place if broken == "root" else data_files(place)[0].parent
    shutil.rmtree(spoilt)
    spoilt.touch()  # a file where a directory should be
    assert got(store, 1) is None
    assert not put(store, 1)
    assert not store.has(FINGERPRINT, key_of(1)) and not store.delete(FINGERPRINT, key_of(1))
    store.maintain()
    assert store.stats().put_failures == 1
    store.close()


def test_a_deleted_store_is_begun_again(store, tmp_path):
    assert put(store, 1)
    shutil.rmtree(tmp_path)
    store.maintain()
    assert got(store, 1) is None
    assert put(store, 1)
    assert got(store, 1) == block(1)


def test_who_is_told_may_fail(tmp_path, caplog):
    def refuse(blocks):
        raise RuntimeError("nobody listens")

    store = open_store(tmp_path, 10 * SLOT, on_forgotten=refuse)
    assert all(put(store, number) for number in range(30))
    assert "nobody listens" in caplog.text
    store.close()


def test_threads_share_a_store(tmp_path):
    store = open_store(tmp_path, 30 * SLOT)
    wrong = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(150):
            number = dice.randrange(40)
            if dice.random() < 0.4:
                put(store, number)
            elif dice.random() < 0.1:
                store.delete(FINGERPRINT, key_of(number))
            elif (data := got(store, number)) is not None and data != block(number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.stats().corrupt == 0 and store.stats().put_failures == 0
    store.close()


@pytest.mark.parametrize("harm", ["lost", "damaged"])
async def test_a_map_that_is_gone_stops_no_upkeep(store, tmp_path, clock, harm):
    for number in range(5):
        put(store, number, ttl_s=60)
    (path,) = tmp_path.glob("slots-*/map")
    path.unlink()
    if harm == "damaged":
        path.write_bytes(b"no map")
    await clock.advance(3600)
    store.maintain(everything=True)
    assert store.stats().expired == 5


def test_foreign_files_are_left_alone(store, tmp_path):
    put(store, 1)
    (index,) = index_files(tmp_path)
    strangers = [index.with_name(name) for name in ("copy of it.index", f"{index.stem}-2.index")]
    for stranger in strangers:
        shutil.copyfile(index, stranger)
    (tmp_path / "slots-1000").write_bytes(b"a file, not a folder")
    store.maintain(everything=True)
    assert store.stats().num_blocks == 1 and got(store, 1) == block(1)
    assert all(stranger.exists() for stranger in strangers)


def test_a_new_segment_that_another_process_fills_at_once_is_passed_over(tmp_path, monkeypatch):
    late, quick = open_store(tmp_path, 40 * SLOT), open_store(tmp_path, 40 * SLOT)
    create = SizeClasses.new_segment

    def overtaken(classes, segments):
        monkeypatch.undo()
        created = create(classes, segments)
        for number in range(100, 100 + created.shape.num_slots):
            assert put(quick, number)
        assert created.num_valid() == created.shape.num_slots
        return created

    monkeypatch.setattr(SizeClasses, "new_segment", overtaken)
    assert put(late, 1)
    assert got(quick, 1) == block(1)
    assert got(late, 100) == block(100)
    quick.close()
    late.close()
