"""The waiting line: nobody idle beside work that fits, in order, fair, and starving nobody."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy.fair_share import FairShare
from rorqual_policy.prefill_line import (
    PrefillLine,
    Puller,
    WaitingPrompt,
    assign_own_buckets,
    choose_pull,
    is_hopeless,
    line_params,
)
from rorqual_policy.prefill_order import SHORT_FIRST
from rorqual_policy.prefill_policy import PREFILL_POLICIES, PrefillPolicy
from rorqual_policy.step_cost import STUDY_COST

RORQUAL: PrefillPolicy = PREFILL_POLICIES["rorqual"](STUDY_COST)
IDLE = Puller("p0", pending_s=0.0, longest_s=0.0, a0_s=STUDY_COST.a0_s)
BUSY = Puller("p1", pending_s=3.0, longest_s=3.0, a0_s=STUDY_COST.a0_s)

PROMPTS = st.lists(
    st.builds(
        WaitingPrompt,
        job_id=st.uuids().map(str),
        tenant=st.sampled_from("ab"),
        bucket=st.integers(0, 3),
        arrival_s=st.floats(0, 100),
        work_s=st.floats(0.001, 20),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda prompt: prompt.job_id,
)


@given(PROMPTS, st.integers(0, 20))
def test_who_waits_is_counted_by_tenant_and_by_length(prompts, num_gone):
    line = line_of(*prompts)
    for prompt in prompts[:num_gone]:
        line.remove(prompt.job_id)
    left = prompts[num_gone:]
    assert line.num_by_tenant() == Counter(prompt.tenant for prompt in left)
    by_bucket = Counter(prompt.bucket for prompt in left)
    names = ("lt16k", "lt64k", "lt256k", "ge256k")
    assert line.num_by_bucket() == {name: by_bucket[n] for n, name in enumerate(names)}


def params(policy=RORQUAL, *, waiting_s=10.0, own=None, weights=None):
    return line_params(
        policy,
        STUDY_COST,
        waiting_s=waiting_s,
        num_ranks=3,
        own_buckets=own or {},
        quantum_s=0.25,
        weights=weights or {},
    )


def line_of(*prompts):
    line = PrefillLine(SHORT_FIRST)
    for prompt in prompts:
        line.add(prompt)
    return line


def prompt(job_id, work_s=0.1, *, arrival_s=0.0, tenant="t", bucket=0, **fields):
    return WaitingPrompt(job_id, tenant, bucket, arrival_s, work_s, **fields)


def pull_all(line, given, puller=IDLE):
    """Everything in the order in which one idle instance gets it."""
    fair, order = FairShare(), []
    while len(line):
        choice = choose_pull(line.heads(), [puller], fair, given)
        fair = choice.fair
        order.append(choice.job_id)
        line.remove(choice.job_id)
    return order


@given(PROMPTS)
def test_an_instance_without_work_gets_some_while_any_waits(prompts):
    line = line_of(*prompts)
    total_s = sum(p.work_s for p in prompts)
    assert line.work_s == pytest.approx(total_s)
    assert sorted(pull_all(line, params())) == sorted(p.job_id for p in prompts)
    assert (len(line), line.work_s, line.heads()) == (0, 0.0, [])


@given(PROMPTS, st.integers(0, 2**20))
def test_heads_are_the_first_in_order_whatever_was_removed(prompts, mask):
    line, left = line_of(*prompts), []
    for number, one in enumerate(prompts):
        if mask >> number & 1:
            line.remove(one.job_id)
        else:
            left.append(one)
    expected = {}
    for one in left:
        key = one.arrival_s + min(SHORT_FIRST.beta * one.work_s, SHORT_FIRST.max_wait_s)
        place = (one.tenant, one.bucket)
        expected[place] = min(expected.get(place, (key, one.job_id)), (key, one.job_id))
    assert {(h.tenant, h.bucket): (h.key_s, h.job_id) for h in line.heads()} == expected


def test_short_work_goes_first_and_long_work_is_not_overtaken_for_ever():
    first_long = prompt("long", 8.0)
    assert pull_all(line_of(first_long, prompt("short", 0.1, arrival_s=5.0)), params()) == [
        "short",
        "long",
    ]
    late = prompt("late", 0.1, arrival_s=SHORT_FIRST.max_wait_s + 1.0)
    assert pull_all(line_of(first_long, late), params())[0] == "long"


def test_priority_is_worth_some_seconds_of_queueing():
    high = prompt("high", arrival_s=4.0, priority=1)
    assert pull_all(line_of(prompt("usual"), high), params())[0] == "high"
    later = replace(high, arrival_s=6.0)
    assert pull_all(line_of(prompt("usual"), later), params())[0] == "usual"


def test_a_busy_instance_takes_short_work_alone_and_only_if_it_gains_more_than_the_long_loses():
    def taken(work_s, *busy, given=None):
        heads = line_of(prompt("one", work_s)).heads()
        return choose_pull(heads, busy, FairShare(), given or params()).instance_id

    assert taken(0.75, BUSY) == "p1"
    assert taken(0.8, BUSY) is None  # more than the shared part of half of the long one
    assert taken(0.4, replace(BUSY, pending_s=3.4)) is None  # there are others already
    nearly = replace(BUSY, pending_s=1.2, longest_s=1.2)
    assert (taken(0.5, nearly), taken(0.6, nearly)) == ("p1", None)  # of a second
    soon = replace(BUSY, instance_id="soon", pending_s=0.4, longest_s=0.4)
    assert taken(0.45, BUSY, soon) is None  # done in 0.85 s there
    assert taken(0.35, BUSY, soon) == "p1"
    assert taken(0.1, BUSY, given=params(PREFILL_POLICIES["deepseek"](STUDY_COST))) is None


def test_short_work_goes_beside_a_long_prompt_rather_than_to_a_slow_instance():
    heads = line_of(prompt("short", 0.2), prompt("long", 3.0, arrival_s=-20.0)).heads()
    slow = replace(IDLE, instance_id="slow", speed=1 / 4)
    choice = choose_pull(heads, [slow, BUSY], FairShare(), params())
    assert (choice.job_id, choice.instance_id) == ("short", "p1")
    heads = line_of(prompt("long", 3.0)).heads()
    assert choose_pull(heads, [slow, BUSY], FairShare(), params()).instance_id == "slow"


def test_the_least_loaded_instance_takes_it_and_a_slow_one_counts_as_loaded():
    heads = line_of(prompt("a", 1.0)).heads()
    assert choose_pull(heads, [BUSY, IDLE], FairShare(), params()).instance_id == "p0"
    stepping = replace(IDLE, instance_id="a", running_s=0.2)
    assert choose_pull(heads, [stepping, IDLE], FairShare(), params()).instance_id == "p0"
    assert choose_pull(heads, [stepping], FairShare(), params()).instance_id == "a"  # for its next
    slow = replace(IDLE, instance_id="slow", speed=1 / 3)
    assert choose_pull(heads, [slow, IDLE], FairShare(), params()).instance_id == "p0"
    assert choose_pull(heads, [slow, BUSY], FairShare(), params()).instance_id == "slow"


def test_an_instance_whose_steps_are_longer_than_any_budget_still_gets_one_prompt_at_a_time():
    heads = line_of(prompt("a", 1.0)).heads()
    slow = replace(IDLE, a0_s=1.0)
    assert choose_pull(heads, [slow], FairShare(), params()).job_id == "a"
    busy = replace(slow, pending_s=1.0, longest_s=1.0)
    assert choose_pull(heads, [busy], FairShare(), params()).job_id is None


def test_strict_buckets_keep_to_their_groups_but_nothing_is_left_to_nobody():
    given = params(PREFILL_POLICIES["deepseek"](STUDY_COST), own={"p0": 0, "p1": 1})
    other = replace(IDLE, instance_id="p1")
    heads = line_of(prompt("a", bucket=0)).heads()
    assert choose_pull(heads, [other], FairShare(), given).job_id is None
    assert choose_pull(heads, [IDLE], FairShare(), given).job_id == "a"
    orphan = line_of(prompt("b", bucket=3)).heads()
    assert choose_pull(orphan, [other], FairShare(), given).job_id == "b"
    assert choose_pull(orphan, [replace(IDLE, served=(0, 1))], FairShare(), given).job_id is None


def test_a_group_prefers_its_own_bucket_to_work_that_is_hardly_more_urgent():
    own = {"p0": 1}
    line = line_of(prompt("other", arrival_s=1.0), prompt("own", arrival_s=1.2, bucket=1))
    assert pull_all(line, params(own=own)) == ["own", "other"]
    line = line_of(prompt("other", arrival_s=1.0), prompt("own", arrival_s=1.4, bucket=1))
    assert pull_all(line, params(own=own)) == ["other", "own"]


def test_tenants_share_by_weight_however_many_jobs_each_has():
    flood = [prompt(f"a{i}", tenant="a") for i in range(80)]
    few = [prompt(f"b{i}", tenant="b", arrival_s=50.0) for i in range(20)]
    taken = pull_all(line_of(*flood, *few), params(weights={"b": 2.0}))
    counts = Counter(job_id[0] for job_id in taken[:24])
    assert counts["b"] >= 14


def test_who_gets_short_work_beside_others_does_not_cost_them_their_turn():
    fair, given = FairShare(), params()
    line = line_of(prompt("long", 9.0, tenant="a"))
    for number in range(300):
        line.add(prompt(f"s{number}", 0.05, tenant="b", arrival_s=float(number)))
        beside = choose_pull(line.heads(), [BUSY], fair, given)
        line.remove(beside.job_id)
        line.add(prompt(f"t{number}", 0.05, tenant="b", arrival_s=float(number)))
        choice = choose_pull(line.heads(), [IDLE], beside.fair, given)
        fair = choice.fair
        line.remove(choice.job_id)
        if choice.job_id == "long":
            return
    pytest.fail("the long prompt never had its turn")


def test_hopeless_is_who_would_be_late_even_alone():
    assert is_hopeless(prompt("a", 2.0, deadline_s=11.9), 10.0)
    assert not is_hopeless(prompt("a", 2.0, deadline_s=12.1), 10.0)
    assert not is_hopeless(prompt("a", 2.0), 1e12)


def test_instances_are_assigned_by_work_and_to_nothing_without_any():
    assert assign_own_buckets(["b", "a"], [3.0, 1.0, 0.0, 0.0]) == {"a": 0, "b": 1}
    assert assign_own_buckets(["a"], [0.0] * 4) == assign_own_buckets([], [1.0]) == {}
