"""A store that is large enough does what a dict with expiry does, whatever the order of calls."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_runtime.clock import ManualClock

from tests.support.blocks import FINGERPRINT, SLOT, block, got, key_of, open_store

NUMBERS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NUMBERS, st.sampled_from([None, 10, 100])),
        st.tuples(st.just("put_many"), st.lists(NUMBERS, max_size=5), st.just(50)),
        st.tuples(st.just("delete"), NUMBERS),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 1000])),
        st.tuples(st.just("maintain")),
        st.tuples(st.just("reopen")),
    ),
    max_size=40,
)


class Model:
    """number -> when it expires."""

    def __init__(self) -> None:
        self.now_s = 0
        self.expires: dict[int, float] = {}

    def put(self, number: int, ttl_s: float | None) -> None:
        kept = self.expires.get(number, -1)
        if kept <= self.now_s:
            self.expires[number] = float("inf") if ttl_s is None else self.now_s + ttl_s
        elif ttl_s is None:
            self.expires[number] = float("inf")
        elif kept < self.now_s + ttl_s / 2:
            self.expires[number] = self.now_s + ttl_s

    def has(self, number: int) -> bool:
        return self.expires.get(number, -1) > self.now_s


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_a_store_is_a_dict_with_expiry(steps):
    with tempfile.TemporaryDirectory() as name:
        directory, model, start = Path(name), Model(), 1.8e9
        store = open_store(directory, 64 * SLOT, clock=ManualClock(start))
        for what, *rest in steps:
            if what == "put":
                number, ttl_s = rest
                model.put(number, ttl_s)
                assert store.put(FINGERPRINT, key_of(number), block(number), ttl_s=ttl_s)
            elif what == "put_many":
                numbers, ttl_s = rest
                for number in numbers:
                    model.put(number, ttl_s)
                blocks = [(key_of(number), block(number)) for number in numbers]
                assert all(store.put_many(FINGERPRINT, blocks, ttl_s=ttl_s))
            elif what == "delete":
                was_there = store.delete(FINGERPRINT, key_of(rest[0]))
                assert was_there or not model.has(rest[0])
                model.expires.pop(rest[0], None)
            elif what == "maintain":
                store.maintain()
            else:
                model.now_s += rest[0] if what == "wait" else 0
                store.close()
                store = open_store(directory, 64 * SLOT, clock=ManualClock(start + model.now_s))
            for number in range(8):
                expected = block(number) if model.has(number) else None
                assert store.has(FINGERPRINT, key_of(number)) == model.has(number)
                assert got(store, number) == expected
        assert store.stats().corrupt == 0
        store.close()
