"""One prefill step is fair, aligned, work conserving and within its budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import BLOCK_TOKENS, StepPlan, WaitingSequence, plan_chunks
from rorqual_policy.prefill_order import FIRST_COME, PrefillOrder
from rorqual_policy.step_cost import StepCost, chunk_cost_s

COST = StepCost(a0_s=0.01, a1_s=0.001, a2_s=1e-7, a3_s=5e-8)
PLAN = StepPlan(COST, spare_s=0.5, max_tokens=4096, order=PrefillOrder(beta=16, max_wait_s=10))
PLANS = st.builds(
    StepPlan,
    cost=st.just(COST),
    spare_s=st.floats(0, 5),
    max_tokens=st.integers(BLOCK_TOKENS, 5000),
    order=st.just(PLAN.order),
    shared_part=st.sampled_from([0.0, 0.5]),
)


@st.composite
def waiting_sequences(draw):
    num = draw(st.integers(0, 12))
    return [
        WaitingSequence(
            sequence_id=f"s{i}",
            remaining_tokens=draw(st.integers(1, 3000)),
            computed_tokens=draw(st.integers(0, 2000)),
            arrival_s=draw(st.integers(0, 60)),
        )
        for i in range(num)
    ]


def planned(waiting, plan=PLAN):
    return {chunk.sequence_id: chunk.num_tokens for chunk in plan_chunks(waiting, plan)}


def cost_s(sequence, num_tokens):
    return chunk_cost_s(COST, num_tokens, sequence.computed_tokens)


def unit_tokens(sequence, waiting, plan):
    """A block, or a token where the rest of a block takes more than what goes in order."""
    block = min(sequence.remaining_tokens, BLOCK_TOKENS - sequence.computed_tokens % BLOCK_TOKENS)
    shared_part = plan.shared_part if len(waiting) > 1 else 0.0
    fits = cost_s(sequence, block) <= (1 - shared_part) * spare_s(plan)
    return BLOCK_TOKENS if fits else 1


def spare_s(plan):
    return max(plan.spare_s, plan.cost.a0_s)


@given(waiting_sequences(), PLANS)
def test_never_over_budget_and_cuts_blocks_only_where_they_are_too_dear(waiting, plan):
    chunks = plan_chunks(waiting, plan)
    by_id = {s.sequence_id: s for s in waiting}
    spent_s = sum(cost_s(by_id[chunk.sequence_id], chunk.num_tokens) for chunk in chunks)
    is_least = len(chunks) == 1 and chunks[0].num_tokens == 1
    assert is_least or spent_s <= spare_s(plan) + 1e-9
    assert sum(chunk.num_tokens for chunk in chunks) <= plan.max_tokens
    assert len({chunk.sequence_id for chunk in chunks}) == len(chunks)
    for chunk in chunks:
        sequence = by_id[chunk.sequence_id]
        assert 0 < chunk.num_tokens <= sequence.remaining_tokens
        end = sequence.computed_tokens + chunk.num_tokens
        is_boundary = end % unit_tokens(sequence, waiting, plan) == 0
        assert is_boundary or chunk.num_tokens == sequence.remaining_tokens


@given(waiting_sequences(), PLANS)
def test_work_conserving(waiting, plan):
    granted = planned(waiting, plan)
    spent = {s.sequence_id: cost_s(s, granted.get(s.sequence_id, 0)) for s in waiting}
    left_s = spare_s(plan) - sum(spent.values())
    left_tokens = plan.max_tokens - sum(granted.values())
    for sequence in waiting:
        done = granted.get(sequence.sequence_id, 0)
        remaining = sequence.remaining_tokens - done
        unit = unit_tokens(sequence, waiting, plan)
        to_boundary = unit - (sequence.computed_tokens + done) % unit
        more = min(remaining, to_boundary)
        more_s = cost_s(sequence, done + more) - spent[sequence.sequence_id]
        assert remaining == 0 or more > left_tokens or more_s > left_s - 1e-9


@given(waiting_sequences(), st.floats(0.6, 5))
def test_a_short_prompt_is_finished_however_long_the_others_are(waiting, spare_s):
    plan = replace(PLAN, spare_s=spare_s, max_tokens=100_000)
    granted = planned(waiting, plan)
    for sequence in waiting:
        share_s = 0.5 * spare_s / len(waiting)
        if cost_s(sequence, sequence.remaining_tokens) <= share_s:
            assert granted[sequence.sequence_id] == sequence.remaining_tokens


@given(waiting_sequences(), PLANS)
def test_the_most_urgent_always_moves(waiting, plan):
    chunks = plan_chunks(waiting, plan)
    if waiting:
        first = min(
            waiting,
            key=lambda s: (
                s.arrival_s + min(16 * cost_s(s, s.remaining_tokens), 10),
                s.arrival_s,
                s.sequence_id,
            ),
        )
        assert chunks[0].sequence_id == first.sequence_id


@given(waiting_sequences(), PLANS, st.randoms())
def test_order_of_the_arguments_does_not_matter(waiting, plan, random):
    shuffled = list(waiting)
    random.shuffle(shuffled)
    assert plan_chunks(shuffled, plan) == plan_chunks(waiting, plan)


def test_a_long_prompt_finishes_under_a_stream_of_short_ones():
    long = WaitingSequence("long", 4096, 0, arrival_s=0.0)
    steps = 0
    while long.remaining_tokens:
        now_s = float(steps)
        shorts = [WaitingSequence(f"short{steps}.{i}", 256, 0, now_s) for i in range(4)]
        done = planned([long, *shorts]).get("long", 0)
        long = replace(
            long,
            remaining_tokens=long.remaining_tokens - done,
            computed_tokens=long.computed_tokens + done,
        )
        if not long.remaining_tokens:
            break
        steps += 1
    assert steps <= PLAN.order.max_wait_s + 4096 / BLOCK_TOKENS


def test_a_block_that_is_dearer_than_a_step_is_cut():
    deep = WaitingSequence("deep", 1000, 500_000, arrival_s=0.0)
    assert planned([deep]) == {"deep": 9}  # of 51 ms each
    short = WaitingSequence("short", 100, 0, arrival_s=90.0)
    assert planned([deep, short]) == {"deep": 7, "short": 100}
    assert planned([deep], replace(PLAN, spare_s=0.0)) == {"deep": 1}  # not even that fits


def test_the_last_tokens_of_a_deep_prompt_are_more_than_a_short_prompt():
    plan = replace(PLAN, cost=StepCost(0.05, 1e-4, 1e-6, 1e-6), spare_s=0.2)
    deep = WaitingSequence("deep", 80, 2048, arrival_s=0.0)
    short = WaitingSequence("short", 120, 0, arrival_s=90.0)
    granted = planned([deep, short], plan)
    assert granted["short"] == 120 and 64 <= granted["deep"] < 80


def test_a_short_prompt_passes_a_long_one_that_came_first():
    long = WaitingSequence("long", 100_000, 0, arrival_s=0.0)
    short = WaitingSequence("short", 200, 0, arrival_s=500.0)
    assert planned([long, short])["short"] == 200
    alone = replace(PLAN, order=FIRST_COME, shared_part=0.0)
    assert "short" not in planned([long, short], alone)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="max_tokens"):
        replace(PLAN, max_tokens=BLOCK_TOKENS - 1)
    with pytest.raises(ValueError, match="remaining"):
        plan_chunks([WaitingSequence("s", 0, 0, 0.0)], PLAN)
