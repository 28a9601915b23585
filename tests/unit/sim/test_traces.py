"""Traces are read as they were written, and cost what a plain replay of their prefixes says."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy.step_cost import STUDY_COST
from rorqual_policy.window_hold import WindowHold
from rorqual_sim.prefix import NEVER, prefix_hits
from rorqual_sim.traces import Trace, read_trace
from rorqual_sim.windows import replay_windows
from rorqual_sim.workloads import Burst, build_workload, price

pytestmark = pytest.mark.timeout(400)  # compiling takes seconds of an idle core


def trace_of(requests, block_tokens=4):
    """Requests as (arrival_s, blocks)."""
    num = len(requests)
    counts = [len(blocks) for _, blocks in requests]
    return Trace(
        name="made",
        arrival_s=np.array([at_s for at_s, _ in requests], np.float64),
        input_tokens=np.array([max(1, count * block_tokens) for count in counts]),
        output_tokens=np.ones(num, np.int64),
        session=np.full(num, -1),
        block_tokens=block_tokens,
        block_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        block_ids=np.array([b for _, blocks in requests for b in blocks], np.int32),
        warm_tokens=np.zeros(num, np.int64),
        service_s=np.zeros(num),
        tenant=np.zeros(num, np.int64),
    )


REQUESTS = st.lists(
    st.tuples(st.floats(0, 10), st.lists(st.integers(0, 3), max_size=6)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.floats(0.0, 4.0))
def test_hits_and_windows_are_those_of_a_plain_replay(gaps, lifetime_s):
    """Ids that are no chain are told apart by what stands before them."""
    requests, now_s = [], 0.0
    for gap_s, blocks in gaps:
        now_s += gap_s
        requests.append((now_s, blocks))
    touched, windows, hits, num_held, num_matched = {}, {}, [], 0, 0
    for at_s, blocks in requests:
        pages = [tuple(blocks[: i + 1]) for i in range(len(blocks))]
        fresh = [at_s - touched.get(page, -np.inf) <= lifetime_s for page in pages]
        hits.append(4 * (fresh.index(False) if False in fresh else len(fresh)))
        matched = sum(page in touched for page in pages)
        if matched:
            num_matched += 1
            num_held += at_s - windows[pages[matched - 1]] <= lifetime_s
            windows[pages[matched - 1]] = at_s
        windows |= dict.fromkeys(pages[matched:], at_s)
        touched |= dict.fromkeys(pages, at_s)
    trace = trace_of(requests)
    assert prefix_hits(trace, (lifetime_s,)).hit_tokens[0].tolist() == hits
    held = replay_windows(trace, WindowHold(0, lifetime_s, lifetime_s))
    assert held.held == pytest.approx(num_held / max(1, num_matched))


def test_session_files_unroll_their_blocks_and_keep_sessions_apart(tmp_path):
    sessions = [
        {"id": "a", "tool": 100, "sys": 28, "reqs": [[0.0, 200, 5, 1.5, 0.0, [1, 2, 7, 1], 0]]},
        {"id": "b", "tool": 0, "sys": 0, "reqs": [[3.0, 70, 6, 1.0, 0.0, [1, 1], 0]] * 2},
    ]
    path = tmp_path / "agents.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, sessions)).encode()))
    trace = read_trace(path)
    assert trace.block_ids.tolist() == [1, 2, 7, 9, 9]
    assert trace.session.tolist() == [0, 1, 1]
    assert trace.warm_tokens.tolist() == [96, 0, 0]
    assert trace.is_relative
    hits = prefix_hits(trace, (NEVER,)).hit_tokens[0]
    assert hits.tolist() == [64, 0, 64]


def test_mooncake_own_and_azure_files(tmp_path):
    own = tmp_path / "own.jsonl"
    rows = [
        {"timestamp": 2000, "input_length": 9, "output_length": 3, "session": "s", "tenant": "t"},
        {"timestamp": 500, "input_length": 5, "output_length": 2, "hash_ids": [1]},
    ]
    own.write_text("\n".join(json.dumps(row | {"block_tokens": 128}) for row in rows))
    trace = read_trace(own)
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.input_tokens.tolist() == [5, 9]
    assert (trace.block_tokens, trace.has_blocks) == (128, True)
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:05.4799600,7,8\n"
    )
    trace = read_trace(azure)
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.output_tokens.tolist() == [10, 8]


def test_load_is_what_was_asked_for_and_bursts_keep_its_mean():
    rng = np.random.default_rng(0)
    requests = [(float(t), [int(b)]) for t, b in enumerate(rng.integers(0, 400, 500))]
    trace = trace_of(requests, block_tokens=2000)
    priced = price(trace, STUDY_COST)
    busy = [
        build_workload(priced, busy_ranks=3.0, window_s=480.0, seed=1, burst=burst)
        for burst in (None, Burst())
    ]
    for workload in busy:
        assert workload.work_s.sum() / 480.0 == pytest.approx(3.0, rel=0.05)
        assert np.all(np.diff(workload.arrival_s) >= 0)
    in_burst = np.mod(busy[1].arrival_s, 120.0) < 20.0
    rates = in_burst.sum() / 20.0, (~in_burst).sum() / 100.0
    assert rates[0] / rates[1] == pytest.approx(1.5 / 0.9, rel=0.1)
