"""Decode placement balances step time, respects room, and is the same everywhere."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import (
    DecodeInstance,
    PlacementOutcome,
    PlacementParams,
    PlacementRequest,
    choose_decode,
    estimate_step_s,
    num_pages_needed,
)

IDLE = DecodeInstance("d0", 0, 64, 0, 10_000, 10_000)
PARAMS = PlacementParams()


def request(request_id="r", tokens=1000, new=100, excluded=()):
    return PlacementRequest(request_id, tokens, new, frozenset(excluded))


@st.composite
def instances(draw):
    num = draw(st.integers(0, 6))
    return [
        DecodeInstance(
            instance_id=f"d{i}",
            num_running=draw(st.integers(0, 8)),
            max_running=draw(st.integers(0, 8)),
            kv_tokens=draw(st.integers(0, 10**6)),
            num_free_pages=draw(st.integers(0, 20)),
            num_total_pages=20,
        )
        for i in range(num)
    ]


@given(instances(), st.integers(1, 4000), st.sets(st.integers(0, 5)))
def test_the_choice_has_room_is_not_excluded_and_has_the_least_step(fleet, tokens, excluded):
    wanted = request(tokens=tokens, excluded={f"d{i}" for i in excluded})
    decision = choose_decode(fleet, wanted)
    pages = num_pages_needed(wanted, PARAMS)
    candidates = [
        i
        for i in fleet
        if i.instance_id not in wanted.excluded_ids
        and i.num_running < i.max_running
        and i.num_free_pages >= pages
    ]
    assert decision.reason
    if not candidates:
        assert decision.instance_id is None
        assert decision.outcome is not PlacementOutcome.PLACED
        return
    chosen = next(i for i in candidates if i.instance_id == decision.instance_id)
    steps = [estimate_step_s(i.num_running, i.kv_tokens, PARAMS) for i in candidates]
    assert estimate_step_s(chosen.num_running, chosen.kv_tokens, PARAMS) <= min(steps) * 1.000001


@given(instances(), st.randoms())
def test_order_of_reports_does_not_matter(fleet, random):
    shuffled = list(fleet)
    random.shuffle(shuffled)
    first, second = choose_decode(fleet, request()), choose_decode(shuffled, request())
    assert first.instance_id == second.instance_id


def test_many_short_weigh_against_few_long_contexts():
    long_context = replace(IDLE, instance_id="long", num_running=1, kv_tokens=400_000)
    many = replace(IDLE, instance_id="many", num_running=6, kv_tokens=600)
    assert choose_decode([long_context, many], request()).instance_id == "many"
    crowd = replace(many, num_running=9)
    assert choose_decode([long_context, crowd], request()).instance_id == "long"


@pytest.mark.parametrize("num", [2, 3, 8])
def test_equal_instances_share_first_choices_evenly(num):
    fleet = [replace(IDLE, instance_id=f"decode-{i}") for i in range(num)]
    chosen = Counter(
        choose_decode(fleet, request(f"req-{i:08x}")).instance_id for i in range(1000 * num)
    )
    assert len(chosen) == num
    assert max(chosen.values()) < 1200


def test_routers_that_decide_at_once_do_not_all_take_the_single_best():
    fleet = [replace(IDLE, instance_id=f"d{i}", num_running=10 + i) for i in range(8)]
    params = PlacementParams(num_deciders=16)
    chosen = Counter(
        choose_decode(fleet, request(f"req{i}"), params).instance_id for i in range(160)
    )
    assert max(chosen.values()) < 160 / 4


@pytest.mark.parametrize(
    ("tokens", "new", "limit", "pages"),
    [
        (128, 1, 0, 1),
        (128, 2, 0, 2),
        (1000, 100, 0, 9),
        (1000, 10**9, 2048, 16),
        (3000, 5, 2048, 24),
        (1, 0, 0, 1),
    ],
)
def test_pages_cover_context_and_longest_answer(tokens, new, limit, pages):
    params = PlacementParams(max_context_tokens=limit)
    assert num_pages_needed(request(tokens=tokens, new=new), params) == pages


@pytest.mark.parametrize(
    ("fleet", "excluded", "outcome"),
    [
        ([], (), PlacementOutcome.NO_INSTANCE),
        ([IDLE], ("d0",), PlacementOutcome.ALL_EXCLUDED),
        ([replace(IDLE, num_running=64)], (), PlacementOutcome.NO_ROOM),
        ([replace(IDLE, num_free_pages=8)], (), PlacementOutcome.NO_ROOM),
        ([replace(IDLE, num_free_pages=8, num_total_pages=8)], (), PlacementOutcome.TOO_LARGE),
        ([replace(IDLE, num_free_pages=9, num_total_pages=9)], (), PlacementOutcome.PLACED),
    ],
)
def test_every_outcome_is_named(fleet, excluded, outcome):
    decision = choose_decode(fleet, request(excluded=excluded))
    assert decision.outcome is outcome
    assert (decision.instance_id is None) == (outcome is not PlacementOutcome.PLACED)
