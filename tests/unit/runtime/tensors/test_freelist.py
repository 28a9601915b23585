"""The allocator never hands out overlapping ranges and loses none."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rorqual_runtime.tensors.freelist import ALIGN_BYTES, FreeList, round_up


def _overlap(ranges):
    ordered = sorted(ranges)
    return any(a[0] + a[1] > b[0] for a, b in pairwise(ordered))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 1000)), max_size=120))
def test_ranges_are_disjoint_and_come_back_as_one(steps):
    span = 64 * 1024
    free = FreeList(span)
    taken = []
    for is_take, size, which in steps:
        if is_take or not taken:
            size = round_up(size)
            start = free.take(size)
            if start is not None:
                assert start % ALIGN_BYTES == 0 and start + size <= span
                taken.append((start, size))
        else:
            free.give(*taken.pop(which % len(taken)))
        assert not _overlap(taken)
        assert free.free_bytes == span - sum(size for _, size in taken)
    for one in taken:
        free.give(*one)
    assert free.take(span) == 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.data())
def test_a_range_that_fits_is_always_found(units, data):
    """Whatever is free in one piece can be had, to the last byte."""
    free = FreeList(64 * sum(units))
    taken = [(free.take(64 * n), 64 * n) for n in units]
    freed = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
    free.give(*freed)
    assert free.take(freed[1] + 64) is None
    assert free.take(freed[1]) == freed[0]


def test_full_is_none_and_zero_span_has_nothing():
    assert FreeList(0).take(64) is None
    free = FreeList(128)
    assert free.take(128) == 0
    assert free.take(64) is None
