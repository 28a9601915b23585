"""One prefill step is fair, aligned, work conserving and within its budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import (
    BLOCK_TOKENS,
    ChunkParams,
    PrefillRoom,
    WaitingSequence,
    can_pull,
    plan_chunks,
)

PARAMS = ChunkParams(beta=16, tokens_per_s=1000, max_wait_s=10)


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


BUDGETS = st.integers(BLOCK_TOKENS, 5000)


def planned(waiting, budget):
    return {chunk.sequence_id: chunk.num_tokens for chunk in plan_chunks(waiting, budget, PARAMS)}


@given(waiting_sequences(), st.integers(0, 5000))
def test_never_over_budget_and_cuts_on_block_boundaries(waiting, budget):
    plan = plan_chunks(waiting, budget, PARAMS)
    by_id = {s.sequence_id: s for s in waiting}
    assert sum(chunk.num_tokens for chunk in plan) <= budget
    assert len({chunk.sequence_id for chunk in plan}) == len(plan)
    for chunk in plan:
        sequence = by_id[chunk.sequence_id]
        assert 0 < chunk.num_tokens <= sequence.remaining_tokens
        end = sequence.computed_tokens + chunk.num_tokens
        assert end % BLOCK_TOKENS == 0 or chunk.num_tokens == sequence.remaining_tokens


@given(waiting_sequences(), BUDGETS)
def test_work_conserving(waiting, budget):
    plan = planned(waiting, budget)
    left = budget - sum(plan.values())
    for sequence in waiting:
        done = plan.get(sequence.sequence_id, 0)
        remaining = sequence.remaining_tokens - done
        to_boundary = BLOCK_TOKENS - (sequence.computed_tokens + done) % BLOCK_TOKENS
        assert remaining == 0 or min(remaining, to_boundary) > left


@given(waiting_sequences(), st.integers(2 * BLOCK_TOKENS, 5000))
def test_a_short_prompt_is_finished_however_long_the_others_are(waiting, budget):
    plan = planned(waiting, budget)
    for sequence in waiting:
        if sequence.remaining_tokens <= budget // 2 // len(waiting):
            assert plan[sequence.sequence_id] == sequence.remaining_tokens


@given(waiting_sequences(), BUDGETS)
def test_the_most_urgent_always_moves(waiting, budget):
    plan = plan_chunks(waiting, budget, PARAMS)
    if waiting:
        oldest = min(
            waiting,
            key=lambda s: (
                s.arrival_s + min(16 * s.remaining_tokens / 1000, 10),
                s.arrival_s,
                s.sequence_id,
            ),
        )
        assert plan[0].sequence_id == oldest.sequence_id


@given(waiting_sequences(), BUDGETS, st.randoms())
def test_order_of_the_arguments_does_not_matter(waiting, budget, random):
    shuffled = list(waiting)
    random.shuffle(shuffled)
    assert plan_chunks(shuffled, budget, PARAMS) == plan_chunks(waiting, budget, PARAMS)


def test_a_long_prompt_finishes_under_a_stream_of_short_ones():
    long = WaitingSequence("long", 4096, 0, arrival_s=0.0)
    steps = 0
    while long.remaining_tokens:
        now_s = float(steps)
        shorts = [WaitingSequence(f"short{steps}.{i}", 256, 0, now_s) for i in range(4)]
        done = planned([long, *shorts], 512).get("long", 0)
        long = replace(
            long,
            remaining_tokens=long.remaining_tokens - done,
            computed_tokens=long.computed_tokens + done,
        )
        if not long.remaining_tokens:
            break
        steps += 1
    assert steps <= PARAMS.max_wait_s + 4096 / 256


def test_a_short_prompt_passes_a_long_one_that_came_first():
    long = WaitingSequence("long", 100_000, 0, arrival_s=0.0)
    short = WaitingSequence("short", 200, 0, arrival_s=500.0)
    assert planned([long, short], 512)["short"] == 200


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="budget"):
        plan_chunks([], -1)
    with pytest.raises(ValueError, match="remaining"):
        plan_chunks([WaitingSequence("s", 0, 0, 0.0)], 128)


ROOM = PrefillRoom(
    queued_tokens=0, max_queued_tokens=2048, num_active=0, max_active=8, num_free_pages=100
)


@pytest.mark.parametrize(
    ("room", "num_jobs"),
    [
        (ROOM, 1),
        (replace(ROOM, tokens_per_job=512), 4),
        (replace(ROOM, tokens_per_job=512, num_active=6), 2),
        (replace(ROOM, tokens_per_job=100_000), 1),
        (replace(ROOM, queued_tokens=2048), 0),
        (replace(ROOM, num_active=8), 0),
        (replace(ROOM, num_free_pages=0), 0),
    ],
)
def test_pull_only_with_spare_budget(room, num_jobs):
    decision = can_pull(room)
    assert decision.num_jobs == num_jobs
    assert decision.reason
