"""A replayed fleet: every request is answered once, causally, the same way each time, whatever
fails."""

import json
from dataclasses import replace
from random import Random

import pytest
from rorqual_policy.placement import PlacementParams, estimate_step_s
from rorqual_policy.step_cost import STUDY_COST, StepCost
from rorqual_sim.replay.fleet import Replay
from rorqual_sim.replay.options import Failure, OneHost, ReplayOptions, Role
from rorqual_sim.replay.push import PUSH_RULES
from rorqual_sim.replay.report import html_report, summary
from rorqual_sim.replay.requests import Request
from rorqual_sim.replay.store import PrefixStore
from rorqual_sim.traces import TraceError, read_trace

pytestmark = pytest.mark.timeout(400)  # compiling takes seconds of an idle core
OPTIONS = ReplayOptions(num_prefill=2, num_decode=2, ranks_per_group=2, start_up_s=5.0)


def write_trace(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def request(at_ms, num_in, num_out, blocks, **extra):
    return dict(
        timestamp=at_ms, input_length=num_in, output_length=num_out, hash_ids=blocks, **extra
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """200 conversations of three turns each, their prompts one behind the other."""
    rows = []
    for number in range(200):
        for turn in range(3):
            blocks = [0, *range(number * 40 + 1, number * 40 + 11 + turn * 5)]
            at_ms = number * 100 + turn * 8000
            rows.append(request(at_ms, len(blocks) * 512 - 100, 60 + turn, blocks, session=number))
    path = tmp_path_factory.mktemp("traces") / "chats.jsonl"
    return read_trace(write_trace(path, rows))


def run(trace, **changes):
    return Replay(trace, replace(OPTIONS, **changes)).run()


def times(result):
    return [(r.number, r.arrival_s, r.first_token_s, r.done_s) for r in result.requests]


@pytest.mark.parametrize("policy", ["rorqual", "deepseek"])
@pytest.mark.parametrize("is_closed_loop", [False, True])
def test_every_request_is_answered_in_order_of_causes(trace, policy, is_closed_loop):
    result = run(trace, policy=policy, is_closed_loop=is_closed_loop)
    assert len(result.requests) == len(trace)
    step_s = estimate_step_s(1, 0, PlacementParams())
    for r in result.requests:
        computed_s = STUDY_COST.a1_s * (r.input_tokens - r.cached_tokens)
        assert r.first_token_s - r.arrival_s >= computed_s
        assert r.done_s - r.first_token_s >= (r.output_tokens - 2) * step_s
    assert times(result) == times(run(trace, policy=policy, is_closed_loop=is_closed_loop))


@pytest.mark.parametrize("policy", sorted(PUSH_RULES))
def test_every_comparator_answers_every_request_and_repeats_itself(trace, policy):
    result = run(trace, policy=policy, speed=4.0, failures=(Failure(6.0, Role.PREFILL, 0, 5.0),))
    assert len(result.requests) == len(trace)
    assert sum(r.num_restarts for r in result.requests) > 0
    again = run(trace, policy=policy, speed=4.0, failures=(Failure(6.0, Role.PREFILL, 0, 5.0),))
    assert times(result) == times(again)


def test_a_rank_with_pages_of_its_own_is_found_by_who_looks_for_them(trace):
    """Without a shared store, round robin meets few of the pages that a cache-aware rule meets."""
    kept = {"rank_cache_s": 900.0}
    found, missed, shared = (
        sum(r.cached_tokens for r in run(trace, **changes).requests)
        for changes in (
            {"policy": "sglang-cache-aware"},
            {"policy": "round-robin", **kept},
            {"policy": "round-robin"},
        )
    )
    assert missed < 0.7 * found
    assert found <= shared


def test_clients_in_a_closed_loop_wait_for_their_answers(trace):
    result = run(trace, is_closed_loop=True)
    for r in result.requests:
        if r.next_number >= 0:
            following = next(f for f in result.requests if f.number == r.next_number)
            assert following.arrival_s >= r.done_s + r.pause_s - 1e-9


@pytest.mark.parametrize("role", list(Role))
def test_what_a_lost_instance_had_is_answered_by_others(trace, role):
    failures = (Failure(6.0, role, 0, down_s=5.0), Failure(8.0, role, 1, down_s=3.0))
    result = run(trace, failures=failures, speed=4.0)
    assert len(result.requests) == len(trace)
    assert sum(r.num_restarts for r in result.requests) > 0
    assert any("is up" in action for action in result.actions)


def test_the_store_answers_what_was_computed_before_unless_it_has_expired(trace):
    kept = run(trace)
    forgotten = run(trace, store_lifetime_s=0.0)
    assert sum(r.cached_tokens for r in forgotten.requests) == 0
    assert sum(r.cached_tokens for r in kept.requests) > 0.4 * sum(trace.input_tokens)
    assert kept.num_replays == 0
    assert run(trace, window_hold_s=0.01).num_replays > 100


def test_a_slow_store_is_waited_for(trace):
    fast, slow = run(trace), run(trace, fetch_bytes_per_s=2e6)
    mean_s = [
        sum(r.first_token_s - r.arrival_s for r in result.requests) for result in (fast, slow)
    ]
    assert mean_s[1] > 2 * mean_s[0]


def test_scaling_starts_instances_under_load_after_their_start_up(trace):
    result = run(trace, num_prefill=1, max_prefill=4, ranks_per_group=1, speed=8.0, start_up_s=2.0)
    assert max(s.num_prefill for s in result.samples) > 1
    assert result.actions


def test_a_request_that_no_instance_can_hold_is_refused_and_the_rest_is_answered(trace):
    longest = int(trace.input_tokens.max())
    result = run(trace, decode_kv_tokens=longest, is_closed_loop=True)
    assert 0 < result.num_refused == len(trace) - len(result.requests)


def test_processors_that_prefill_and_decode_share_make_both_slower(trace):
    alone = run(trace)
    slow = run(trace, host=OneHost(2.0, 3.0, before_prefill_s=0.01, handover_s=0.02))
    assert all(r.first_token_s - r.arrival_s >= 0.01 for r in slow.requests)
    for of in (lambda r: r.first_token_s - r.arrival_s - 0.01, lambda r: r.tpot_s):
        ratio = sum(map(of, slow.requests)) / sum(map(of, alone.requests))
        assert 1.02 < ratio < 4


def test_the_report_has_numbers_and_plots(trace):
    result = run(trace)
    values = summary(result, OPTIONS, trace.name)
    assert values["num_requests"] == len(trace)
    assert 0 < values["ttft_s"]["p50"] <= values["ttft_s"]["p99"]
    page = html_report(result, json.loads(json.dumps(values)), OPTIONS)
    assert page.count("<svg") == 7
    assert "NaN" not in page
    assert "nan" not in page.split("<pre>")[0]


@pytest.mark.parametrize(
    "text",
    ["", "[1]\n", '{"timestamp": 1}\n', "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n"],
)
def test_a_bad_trace_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"bad\.jsonl:\d"):
        read_trace(path)


def test_options_that_make_no_sense_are_refused():
    for bad in (
        {"policy": "best"},
        {"num_decode": 0},
        {"speed": 0.0},
        {"step_tokens": 64},
        {"policy": "rorqual", "rank_cache_s": 60.0},
    ):
        with pytest.raises(ValueError):
            ReplayOptions(**bad)


@pytest.mark.parametrize("down_s", [float("inf"), float("nan"), -1.0])
def test_a_failure_ends(down_s):
    with pytest.raises(ValueError, match="down_s is finite"):
        Failure(5.0, Role.DECODE, down_s=down_s)


def of_lengths(rng, first_block, num, low, high, at_ms, num_chats):
    """Prompts of one token's answer that share nothing; lengths log-uniform."""
    rows = []
    for number in range(num):
        tokens = round(low * (high / low) ** rng.random())
        blocks = [first_block + 100 * number + block for block in range(-(-tokens // 512))]
        chat = first_block + number % num_chats
        rows.append(request(at_ms(number), tokens, 1, blocks, session=chat))
    return rows


def short_ttft_p99(tmp_path, rows, **changes):
    """Of prompts of up to 512 tokens on three engines as quick as one core."""
    in_order = sorted(rows, key=lambda row: row["timestamp"])
    trace = read_trace(write_trace(tmp_path / "mix.jsonl", in_order))
    core = StepCost(5e-3, 5.5e-4, 1e-9, 1e-9)
    options = {"num_prefill": 3, "ranks_per_group": 1, "cost": core, "is_closed_loop": True}
    result = run(trace, **options, **changes)
    waits = [r.first_token_s - r.arrival_s for r in result.requests if r.input_tokens <= 512]
    return sorted(waits)[-1 - len(waits) // 100]


def test_short_prompts_behind_long_ones_wait_at_most_three_times_as_long_as_alone(tmp_path):
    """Five clients send long prompts one after the other to three engines, so some always wait."""
    rng = Random(1)
    shorts = of_lengths(rng, 0, 300, 1, 512, lambda n: 2000 + 200 * n, 300)
    longs = of_lengths(rng, 10**6, 150, 2048, 6144, lambda n: 10 * (n // 5), 5)
    alone_s = short_ttft_p99(tmp_path, shorts)
    assert short_ttft_p99(tmp_path, shorts + longs) <= 3.0 * alone_s
    assert short_ttft_p99(tmp_path, shorts + longs, policy="deepseek") > 9.0 * alone_s


def test_steps_too_short_for_a_token_are_refused(trace):
    with pytest.raises(ValueError, match="compute nothing"):
        run(trace, step_limit_s=STUDY_COST.a0_s)


@pytest.mark.parametrize("policy", ["rorqual", "deepseek"])
def test_a_machine_whose_steps_cost_nothing_by_themselves_answers_all_the_same(trace, policy):
    result = run(trace, policy=policy, cost=StepCost(0.0, 1e-5, 0.0, 0.0))
    assert all(r.first_token_s > r.arrival_s for r in result.requests)


def test_a_page_that_expired_and_is_computed_again_keeps_a_fresh_window():
    store = PrefixStore(replace(OPTIONS, store_lifetime_s=60.0, window_hold_s=180.0))
    asked = Request(0, 1024, 1, 0, (7, 8), 512, 0)
    store.write(asked, 0.0)
    assert store.match(asked, 170.0) == (0, 0)
    store.write(asked, 170.0)
    assert store.match(asked, 200.0) == (1023, 0)


@pytest.mark.parametrize("blocks", [[2**31], [-5]])
def test_block_ids_are_checked(tmp_path, blocks):
    path = write_trace(tmp_path / "ids.jsonl", [request(0, 100, 1, blocks)])
    with pytest.raises(TraceError, match=r"line 1|:1"):
        read_trace(path)
