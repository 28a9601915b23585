"""Logged decisions can be read back as JSON and made again; there are never too many of them."""

import json
import logging

import pytest
from rorqual_policy import (
    DecodeInstance,
    ImageRequest,
    PlacementParams,
    PlacementRequest,
    QueueState,
    StepPlan,
    VisionInstance,
    WaitingSequence,
    choose_decode,
    choose_vision,
    decide_admission,
    plan_chunks,
)
from rorqual_policy.expert_rebalance import RebalanceParams, decide_rebalance
from rorqual_policy.fair_share import FairShare
from rorqual_policy.prefill_line import LineHead, Puller, choose_pull, line_params
from rorqual_policy.prefill_policy import rorqual_policy
from rorqual_policy.step_cost import STUDY_COST
from rorqual_runtime.decision_log import MAX_PER_S, configure_decision_log, log_decision
from rorqual_runtime.logs import JsonFormatter
from rorqual_sim.decisions import replay_decisions

LINE = line_params(
    rorqual_policy(STUDY_COST),
    STUDY_COST,
    waiting_s=3.0,
    num_ranks=2,
    own_buckets={"p0": 1},
    quantum_s=0.25,
    weights={"a": 2.0},
)
HEADS = [LineHead("r/0", "a", 0, 1.5, 0.1), LineHead("s/0", "b", 1, 1.0, 0.2)]
PULLERS = [Puller("p0", 0.1, 0.1, 0.05, 1.25, 0.008), Puller("p1", 5.0, 4.0)]
FAIR = FairShare(("a", "b"), {"a": 0.1, "b": 0.0})
DECODE = [DecodeInstance("d0", 1, 8, 100, 10, 20), DecodeInstance("d1", 2, 8, 50, 10, 20)]
CASES = {
    "admission": (decide_admission, (QueueState(5, 5, 100.0, 1000.0), 1)),
    "chunks": (
        plan_chunks,
        ([WaitingSequence("r/0", 500, 128, 0.1)], StepPlan(STUDY_COST, 0.1 / 3, 4096)),
    ),
    "experts": (
        decide_rebalance,
        ([[4000.0, 10.0, 10.0, 10.0]], ((0, 1, 3), (2, 3)), RebalanceParams(least_tokens=2.5)),
    ),
    "placement": (
        choose_decode,
        (DECODE, PlacementRequest("r", 100, 9, frozenset({"b", "a"})), PlacementParams()),
    ),
    "pull": (choose_pull, (HEADS, PULLERS, FAIR, LINE)),
    "vision": (
        choose_vision,
        ([VisionInstance("v0", 10, 100)], ImageRequest(b"digest", 64, frozenset({"v1"}))),
    ),
}


@pytest.fixture
def logged():
    """Log lines as they are written."""
    lines: list[str] = []
    handler = logging.Handler()
    formatter = JsonFormatter("router", "router-1")
    handler.emit = lambda record: lines.append(formatter.format(record))
    logger = logging.getLogger("rorqual.decisions")
    logger.addHandler(handler)
    configure_decision_log(True, now_s=lambda: 1.0)
    yield lines
    logger.removeHandler(handler)
    configure_decision_log(False)


@pytest.mark.parametrize("kind", CASES)
def test_a_logged_decision_is_made_again(logged, kind):
    policy, given = CASES[kind]
    log_decision(kind, given, policy(*given))
    (line,) = [json.loads(text) for text in logged]
    found = replay_decisions([line])
    assert (dict(found.counts), found.differences) == ({kind: 1}, [])


def test_another_decision_than_the_logged_one_is_a_difference(logged):
    policy, given = CASES["placement"]
    log_decision("placement", given, policy(*given))
    (line,) = [json.loads(text) for text in logged]
    line["decision"]["instance_id"] = "d9"
    (difference,) = replay_decisions([line]).differences
    assert (difference.logged.instance_id, difference.replayed.instance_id) == ("d9", "d0")


@pytest.mark.parametrize("input_", [None, [[{"nobody": 1}]], "what"])
def test_a_decision_that_its_policy_does_not_understand_is_named(input_):
    line = {"message": "decision", "kind": "placement", "decision": {}, "input": input_}
    with pytest.raises(ValueError, match="'placement' decision does not fit"):
        replay_decisions([line])


def test_a_flood_of_decisions_is_cut(logged):
    for _ in range(MAX_PER_S + 50):
        log_decision("admission", (QueueState(0, 1), 1), None)
    assert len(logged) == MAX_PER_S


def test_nothing_is_logged_unless_asked_for(logged):
    configure_decision_log(False)
    log_decision("placement", (object(),), object())
    assert logged == []
