"""Reading or computing a stored prefix: never slower than the better of both by what is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.prefix_fetch import (
    FetchSource,
    ReadRate,
    StoredPrefix,
    bytes_per_s,
    choose_fetch,
    fetch_patience_s,
    fetch_s,
    observe_read,
)
from rorqual_policy.step_cost import StepCost, chunk_cost_s

COST = StepCost(a0_s=0.0, a1_s=1e-3, a2_s=1e-7, a3_s=5e-8)
MB = 1 << 20


def _store(rate: float = 100 * MB, queued: int = 0, name: str = "") -> FetchSource:
    return FetchSource(name, rate, queued)


def _prefix(num_blocks: int, block_bytes: int = MB) -> StoredPrefix:
    return StoredPrefix(num_blocks, num_blocks * block_bytes, num_blocks * BLOCK_TOKENS + 50)


def test_a_quick_store_is_read_and_a_slow_one_is_not() -> None:
    assert choose_fetch(_prefix(8), [_store()], COST, 0.0).num_blocks == 8
    slow = choose_fetch(_prefix(8), [_store(rate=MB)], COST, 0.0)
    assert (slow.num_blocks, slow.reason) == (0, "computing is quicker")


def test_what_comes_while_the_engine_is_busy_is_read_from_a_slow_store_too() -> None:
    assert choose_fetch(_prefix(8), [_store(rate=MB)], COST, 3.0).num_blocks == 3
    assert choose_fetch(_prefix(8), [_store(rate=MB)], COST, 9.0).num_blocks == 8


def test_without_measurements_everything_is_read() -> None:
    assert choose_fetch(_prefix(8), [_store(rate=0.0)], COST, 0.0).num_blocks == 8
    assert choose_fetch(_prefix(8), [_store(rate=1.0)], None, 0.0).num_blocks == 8


def test_blocks_in_host_memory_cost_nothing() -> None:
    prefix = StoredPrefix(8, 0, 8 * BLOCK_TOKENS + 1)
    assert choose_fetch(prefix, [_store(rate=1.0, queued=MB)], COST, 0.0).num_blocks == 8


def test_a_relay_is_asked_when_the_own_store_has_much_to_read() -> None:
    relay = _store(rate=60 * MB, name="decode-1")
    idle = choose_fetch(_prefix(8), [_store(), relay], COST, 0.0)
    busy = choose_fetch(_prefix(8), [_store(queued=80 * MB), relay], COST, 0.0)
    assert (idle.source, busy.source) == ("", "decode-1")
    assert choose_fetch(_prefix(8), [_store(), _store(name="x")], COST, 0.0).source == ""


@given(
    num_blocks=st.integers(1, 500),
    rate=st.floats(1e5, 1e10),
    queued=st.integers(0, 10**9),
    engine_wait_s=st.floats(0, 20),
)
def test_no_other_number_of_blocks_would_have_been_done_sooner(
    num_blocks: int, rate: float, queued: int, engine_wait_s: float
) -> None:
    prefix, source = _prefix(num_blocks), _store(rate, queued)

    def done_s(blocks: int) -> float:
        context = blocks * BLOCK_TOKENS
        read_s = fetch_s(source, blocks * MB)
        rest_s = chunk_cost_s(COST, prefix.num_prompt_tokens - context, context)
        return max(engine_wait_s, read_s) + rest_s

    choice = choose_fetch(prefix, [source], COST, engine_wait_s)
    one_block_s = chunk_cost_s(COST, BLOCK_TOKENS, num_blocks * BLOCK_TOKENS)
    best_s = min(done_s(blocks) for blocks in range(num_blocks + 1))
    assert done_s(choice.num_blocks) <= best_s + one_block_s


def test_a_fetch_is_waited_for_as_long_as_computing_takes() -> None:
    def patience(num_blocks: int, cost: StepCost | None = COST) -> float:
        return fetch_patience_s(cost, 10, num_blocks, least_s=0.2, most_s=5.0)

    assert patience(8) == chunk_cost_s(COST, 8 * BLOCK_TOKENS, 10 * BLOCK_TOKENS)
    assert patience(1) == 0.2
    assert patience(1000) == patience(1, None) == 5.0


def test_a_rate_follows_what_is_measured_and_is_forgotten() -> None:
    rate = ReadRate()
    assert bytes_per_s(rate, 5.0) == 0.0
    for second in range(100):
        rate = observe_read(rate, 100, 1.0, float(second))
    assert abs(bytes_per_s(rate, 99.0) - 100) < 1e-6
    for second in range(100, 160):
        rate = observe_read(rate, 10, 1.0, float(second))
    assert 10 < bytes_per_s(rate, 159.0) < 13
    assert bytes_per_s(rate, 300.0) == 0.0
