"""The table holds what a dict would, through growth, overwriting, removal and crowding."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_kvmeta.table import MAX_LOAD, GrowingTable, KeyTable

# Few distinct low bits: buckets overflow all the time.
NUMBERS = st.integers(0, 300)
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.lists(NUMBERS, unique=True, max_size=60)),
    max_size=25,
)


def key_of(number):
    return (np.uint64(number + 2 << 8) | np.uint64(number % 3), np.uint64(number * 7 + 1))


def entries_of(numbers, value):
    rows = [(*key_of(number), value, value + number) for number in numbers]
    return np.array(rows, np.uint64).reshape(-1, 4)


@given(STEPS)
@settings(deadline=None)
def test_it_equals_a_dict(steps):
    table, model = GrowingTable(num_buckets=2), {}
    for value, (kind, numbers) in enumerate(steps):
        if kind == "put":
            before = table.put(entries_of(numbers, value))
            known = [int(row[0]) != 0 for row in before]
            assert known == [number in model for number in numbers]
            model.update(dict.fromkeys(numbers, value))
        else:
            table.remove(entries_of(numbers, 0)[:, :2])
            for number in numbers:
                model.pop(number, None)
        assert len(table) == len(model)
    everyone = list(range(301))
    found = table.find(entries_of(everyone, 0)[:, :2])
    assert {n: int(row[2]) for n, row in zip(everyone, found, strict=True) if row[0]} == model
    assert sum(len(part) for part in table.parts(64)) == len(model)


def test_a_walk_meets_everything_while_growing_begins_and_ends():
    rng = np.random.default_rng(0)
    table = GrowingTable(8192)
    first = rng.integers(2, 2**64, (22_900, 4), dtype=np.uint64)
    table.put(first)
    size_before = table.num_bytes
    met = []
    for part in table.parts(256):
        met.append(part[:, 0])
        table.put(rng.integers(2, 2**64, (32, 4), dtype=np.uint64))
    assert table.num_bytes > size_before
    assert np.isin(first[:, 0], np.concatenate(met)).all()


def test_a_key_that_agrees_in_its_first_half_is_another():
    table = GrowingTable()
    table.put(entries_of([1], 5))
    other = entries_of([1], 5)[:, :2].copy()
    other[0, 1] += 1
    assert not table.find(other).any()


def test_growing_moves_a_little_with_each_write():
    rng = np.random.default_rng(0)
    table = GrowingTable()
    for _ in range(200):
        rows = rng.integers(2, 2**64, (500, 4), dtype=np.uint64)
        table.put(rows)
        assert (table.find(rows[:, :2]) == rows).all()
    assert len(table) == 100_000
    table.settle(1 << 20)
    assert len(table) == 100_000
    assert table.num_bytes / len(table) < 100


def test_graves_are_cleared_away():
    rng = np.random.default_rng(0)
    table = GrowingTable(num_buckets=16)
    for _ in range(300):
        rows = rng.integers(2, 2**64, (20, 4), dtype=np.uint64)
        table.put(rows)
        table.remove(rows[:, :2])
        table.put(rows[:1])
        table.remove(rows[:1, :2])
    assert table.num_bytes <= 64 * 32 * 4


def test_room_is_what_keeps_lookups_short():
    table = KeyTable(4)
    assert table.has_room(int(16 * MAX_LOAD)) and not table.has_room(int(16 * MAX_LOAD) + 1)
