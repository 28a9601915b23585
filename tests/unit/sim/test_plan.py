"""A plan is the fewest instances that meet the objectives, or says that there are none."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rorqual_cli.__main__ import main
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.plan import Objective, Prices, money, parse_objectives, plan_fleet
from rorqual_sim.traces import read_trace

pytestmark = pytest.mark.timeout(400)  # compiling takes seconds of an idle core
OPTIONS = ReplayOptions(ranks_per_group=1, max_running=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """15 prompts a second of 8K tokens, 100 tokens out: two cards of prefill, 16 in decode."""
    rng = np.random.default_rng(0)
    rows = [
        {"timestamp": int(at_ms), "input_length": 8192, "output_length": 100}
        for at_ms in np.sort(rng.uniform(0, 30_000, 450))
    ]
    path = tmp_path_factory.mktemp("traces") / "steady.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_one_instance_fewer_of_either_kind_would_not_do(path):
    trace = read_trace(path)
    objectives = parse_objectives("ttft_p99=1s,tpot=12ms")
    plan = plan_fleet(trace, OPTIONS, objectives, 16)
    assert plan.is_met
    assert plan.num_prefill >= 2 and plan.num_decode >= 2
    tried = [reason.partition(":") for reason in plan.reasons]
    outcomes = {fleet: "MISSED" not in outcome for fleet, _, outcome in tried}
    assert outcomes[f"{plan.num_prefill} prefill, {plan.num_decode} decode"]
    assert not outcomes[f"{plan.num_prefill - 1} prefill, 16 decode"]
    assert not outcomes[f"{plan.num_prefill} prefill, {plan.num_decode - 1} decode"]
    assert "one prefill instance fewer would miss ttft_p99 <= 1 s" in plan.why
    assert "one decode instance fewer would miss" in plan.why
    costs = money(plan.values, Prices(card_hour=2.0, input=1.0))
    assert costs["cost_per_hour"] == pytest.approx(2.0 * (plan.num_prefill + plan.num_decode))
    assert costs["revenue_per_hour"] == pytest.approx(15 * 8192 * 3600 / 1e6, rel=0.1)


def test_the_command_says_what_can_not_be_met(path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["plan", "--trace", str(path), "--slo", "tpot=5ms", "--max-instances", "2"])
    assert left.value.code == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["plan"]["is_met"] is False
    assert "MISSED" in shown["plan"]["tried"][0]
    assert "as many as are allowed, miss tpot_mean" in shown["plan"]["why"]


def test_a_plan_says_what_it_leaves_out(tmp_path):
    rows = [{"timestamp": 0, "input_length": n, "output_length": 5} for n in (100, 100, 9000)]
    path = tmp_path / "large.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = replace(OPTIONS, decode_kv_tokens=4096)
    plan = plan_fleet(read_trace(path), options, parse_objectives("ttft_p99=10s"), 1)
    assert plan.is_met and plan.why.endswith("fit no decode instance: 1 requests")


def test_objectives_are_read_with_their_units():
    assert parse_objectives("ttft_p99=1s, tpot=5ms") == (
        Objective("ttft", "p99", 1.0),
        Objective("tpot", "mean", 0.005),
    )
    with pytest.raises(ValueError, match="tpot=5"):
        parse_objectives("ttft=1s,tpot=5 ")


def test_replay_writes_numbers_and_a_page(path, tmp_path):
    numbers, page, prices = (tmp_path / name for name in ("n.json", "p.html", "prices.json"))
    prices.write_text('{"cards": {"h200": 2.5}, "million_tokens": {"output": 4}}')
    wanted = ["--json", str(numbers), "--html", str(page), "--fail", "decode:0@5+2"]
    wanted += ["--policy", "power-of-two", "--prices", str(prices)]
    with pytest.raises(SystemExit) as left:
        main(["replay", str(path), "--ranks", "2", "--step-tokens", "16384", *wanted])
    assert left.value.code == 0
    values = json.loads(numbers.read_text())
    assert values["num_requests"] == 450
    assert 0 < values["money"]["cost_per_hour"] <= 2.5 * (2 * 2 + 2)
    assert "Cost so far" in page.read_text()
