"""A store of 2,000 blocks is harmed in every way the files allow: nothing wrong is ever read, every
damage is counted and told once, and the store goes on."""

import os
import random
import shutil

import pytest
from rorqual_runtime.blockstore.record import PACKED_BYTES

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
    swap_records,
)

NUM_BLOCKS = 2000
CAPACITY = 2100 * SLOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    store = open_store(directory, CAPACITY, io_mode="buffered")
    assert all(put(store, number) for number in range(NUM_BLOCKS))
    store.close()
    return directory


class Harmed:
    """A copy of the store, harmed, and what reading all of it finds."""

    def __init__(self, whole, directory) -> None:
        self.directory = directory / "store"
        shutil.copytree(whole, self.directory)
        self.told: list[tuple[bytes, str]] = []

    def read_all(self) -> set[int]:
        """Numbers of the blocks that are lost; each damage must have been counted and told."""
        store = open_store(
            self.directory,
            CAPACITY,
            io_mode="buffered",
            on_forgotten=lambda blocks: self.told.extend((b.key, b.reason) for b in blocks),
        )
        lost = set()
        for number in range(NUM_BLOCKS):
            data = got(store, number)
            assert data in (None, block(number))
            if data is None:
                lost.add(number)
        self.num_corrupt = store.stats().corrupt
        assert all(put(store, number) for number in lost)
        assert all(got(store, number) == block(number) for number in lost)
        assert store.stats().corrupt == self.num_corrupt
        store.close()
        return lost


@pytest.fixture
def harmed(whole, tmp_path):
    return Harmed(whole, tmp_path)


def corrupt(numbers):
    return sorted((key_of(number), "corrupt") for number in numbers)


def test_flipped_bits_in_one_block_of_a_hundred(harmed):
    dice = random.Random(1)
    victims = set(dice.sample(range(NUM_BLOCKS), NUM_BLOCKS // 100))
    for number in victims:
        path, offset = find_record(harmed.directory, key_of(number))
        used = dice.choice([range(PACKED_BYTES), range(4096, 4096 + SIZE)])
        flip_bit(path, offset + dice.choice(used))
    assert harmed.read_all() == victims
    assert harmed.num_corrupt == len(victims) and sorted(harmed.told) == corrupt(victims)


def test_truncated_segments(harmed):
    dice = random.Random(2)
    for path in dice.sample(data_files(harmed.directory), 5):
        os.truncate(path, dice.randrange(path.stat().st_size))
    lost = harmed.read_all()
    assert 0 < len(lost) < NUM_BLOCKS // 2
    assert harmed.num_corrupt == len(lost) and sorted(harmed.told) == corrupt(lost)


def test_two_slots_change_places(harmed):
    swap_records(harmed.directory, key_of(3), key_of(NUM_BLOCKS - 5), SLOT)
    assert harmed.read_all() == {3, NUM_BLOCKS - 5}
    assert sorted(harmed.told) == corrupt({3, NUM_BLOCKS - 5})


def test_whole_segments_change_places(harmed):
    one, other = data_files(harmed.directory)[:2]
    spare = harmed.directory / "spare"
    one.rename(spare)
    other.rename(one)
    spare.rename(other)
    lost = harmed.read_all()
    assert len(lost) > 100
    assert harmed.num_corrupt == len(lost) and sorted(harmed.told) == corrupt(lost)


def test_an_old_index_comes_back(harmed):
    old = {path: path.read_bytes() for path in index_files(harmed.directory)}
    old_map = next(harmed.directory.glob("slots-*/map")).read_bytes()
    store = open_store(harmed.directory, CAPACITY, io_mode="buffered")
    for number in range(0, 600, 2):
        store.delete(FINGERPRINT, key_of(number))
    assert all(put(store, number) for number in range(NUM_BLOCKS, NUM_BLOCKS + 350))
    store.close()
    for path, raw in old.items():
        path.write_bytes(raw)
    next(harmed.directory.glob("slots-*/map")).write_bytes(old_map)
    lost = harmed.read_all()
    assert lost and harmed.num_corrupt == len(lost)
    assert sorted(harmed.told)[: len(lost)] == corrupt(lost)


def test_a_flipped_bit_in_every_index_header(harmed):
    paths = index_files(harmed.directory)
    for path in paths:
        flip_bit(path, 9)
    assert harmed.read_all() == set(range(NUM_BLOCKS))
    assert harmed.num_corrupt == len(paths)


def test_random_bits_anywhere(harmed):
    """Also where they harm nothing that is in use."""
    dice = random.Random(3)
    files = [path for path in harmed.directory.rglob("*") if path.stat().st_size and path.is_file()]
    for _ in range(300):
        path = dice.choice([p for p in files if p.suffix in (".data", ".index") or p.name == "map"])
        flip_bit(path, dice.randrange(path.stat().st_size))
    lost = harmed.read_all()
    assert 0 < len(lost) < NUM_BLOCKS
