"""Processes come and go with demand; none is left behind and none of others is touched."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time

from google.protobuf.empty_pb2 import Empty
from rorqual_proto.v1 import scaler_pb2
from rorqual_runtime import subjects

from tests.support.waiting import WAIT_S, until

from .conftest import QUICK, running_scaler, stub_pids, target


async def test_a_second_process_comes_with_load_and_goes_without(
    runtime_settings, child_env, demand
):
    home = runtime_settings.home
    async with running_scaler(runtime_settings, max_prefill=2) as scaler:
        await asyncio.sleep(1.0)
        assert stub_pids(home) == []
        demand.missed_tokens_per_s = 1500.0
        await until(lambda: target(scaler).num_running == 2)
        assert len(stub_pids(home)) == 1
        await asyncio.sleep(1.0)
        assert len(stub_pids(home)) == 1
        demand.missed_tokens_per_s = 0.0
        await until(lambda: stub_pids(home) == [])
        await until(lambda: target(scaler).num_running == 1)
    (log,) = (home / "logs").glob("prefill-scaled-*.log")
    assert "drained" in log.read_text()


async def test_nothing_scales_unless_asked(runtime_settings, child_env, demand):
    demand.missed_tokens_per_s = 100_000.0
    async with running_scaler(runtime_settings) as scaler:
        await asyncio.sleep(1.5)
        assert target(scaler).num_desired == 1
        assert stub_pids(runtime_settings.home) == []


async def test_children_end_with_the_scalers_own_drain(runtime_settings, child_env, demand):
    demand.missed_tokens_per_s = 10_000.0
    async with running_scaler(runtime_settings, max_prefill=3):
        await until(lambda: len(stub_pids(runtime_settings.home)) == 2)
    assert stub_pids(runtime_settings.home) == []


async def test_a_dead_child_is_noticed_and_replaced(runtime_settings, child_env, demand):
    home = runtime_settings.home
    demand.missed_tokens_per_s = 1500.0
    async with running_scaler(runtime_settings, max_prefill=2) as scaler:
        await until(lambda: target(scaler).num_running == 2)
        (first,) = stub_pids(home)
        os.kill(first, signal.SIGKILL)
        await until(lambda: stub_pids(home) not in ([], [first]))


async def test_a_child_that_will_not_go_is_killed(
    runtime_settings, child_env, demand, monkeypatch, caplog
):
    monkeypatch.setenv("STUB_MODE", "stubborn")
    home = runtime_settings.home
    demand.missed_tokens_per_s = 1500.0
    async with running_scaler(runtime_settings, max_prefill=2, drain_s=0.5) as scaler:
        await until(lambda: target(scaler).num_running == 2)
        demand.missed_tokens_per_s = 0.0
        await until(lambda: stub_pids(home) == [])
        assert any("killed" in record.message for record in caplog.records)


async def test_failing_starts_are_spaced_out(runtime_settings, child_env, demand, monkeypatch):
    monkeypatch.setenv("STUB_MODE", "fails")
    demand.missed_tokens_per_s = 1500.0
    async with running_scaler(runtime_settings, max_prefill=2):
        logs = runtime_settings.home / "logs"
        await until(lambda: logs.exists() and len(list(logs.iterdir())) >= 2)
        before, began_s = len(list(logs.iterdir())), time.monotonic()
        await asyncio.sleep(2.0)
        num_pauses = (time.monotonic() - began_s) / QUICK["restart_pause_s"]
        assert len(list(logs.iterdir())) - before <= num_pauses + 1


async def test_a_process_that_others_started_is_never_stopped(
    runtime_settings, child_env, bus, demand
):
    told = []

    async def on_shutdown(_request, _context):
        told.append("p1")
        return Empty()

    await bus.serve(subjects.shutdown("prefill", "p1"), Empty, Empty, on_shutdown, name="shutdown")
    demand.baseline["p1"] = "prefill"
    async with running_scaler(runtime_settings, max_prefill=2) as scaler:
        await until(lambda: scaler.decision is not None)
        await until(lambda: target(scaler).num_running == 2)
        await until(lambda: target(scaler).num_desired == 1)
        await asyncio.sleep(0.5)
    assert told == []


async def test_decisions_are_published_and_served(runtime_settings, bus, demand):
    seen = []

    async def on_decision(decision, _context):
        seen.append(decision)

    await bus.subscribe(subjects.scaler_decisions(), scaler_pb2.ScaleDecision, on_decision)
    demand.missed_tokens_per_s = 5000.0
    async with running_scaler(runtime_settings, driver="none", max_prefill=4, max_decode=2):
        await until(lambda: bool(seen) and seen[-1].targets[0].num_desired == 4)
        served = await bus.request(
            subjects.scaler_get_decision(),
            scaler_pb2.GetDecisionRequest(),
            scaler_pb2.ScaleDecision,
            timeout_s=WAIT_S,
        )
    assert {t.service for t in served.targets} == {"prefill", "decode"}
    assert served.driver == "none"
    assert served.targets[0].num_change == 3
    assert served.targets[0].num_running == 1
    assert all(t.reason for t in served.targets)
    assert [d.seq for d in seen] == sorted({d.seq for d in seen})


async def test_children_do_not_outlive_a_killed_scaler(
    runtime_settings, child_env, demand, monkeypatch
):
    home = runtime_settings.home
    for name, value in {**QUICK, "max_prefill": 2}.items():
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        monkeypatch.setenv(f"RORQUAL_SCALER_{name.upper()}", text)
    demand.missed_tokens_per_s = 1500.0
    home.mkdir(parents=True, exist_ok=True)
    with (home / "scaler.log").open("wb") as log:
        scaler = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rorqual_scaler", stdout=log, stderr=log
        )
    try:
        await until(lambda: len(stub_pids(home)) == 1, (home / "scaler.log").read_text)
        await asyncio.sleep(1.0)
        scaler.kill()
        await scaler.wait()
        await until(lambda: stub_pids(home) == [])
    finally:
        with contextlib.suppress(ProcessLookupError):
            scaler.kill()
