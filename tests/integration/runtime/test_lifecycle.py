"""A service process starts, reports, drains and stops as it promises."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from google.protobuf.empty_pb2 import Empty
from rorqual_proto.v1 import load_pb2, router_pb2
from rorqual_proto.v1.scaler_pb2 import ShutdownRequest
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import discovered
from tests.support.servers import NatsServer, free_port
from tests.support.waiting import WAIT_S, soon, until

ROOT = Path(__file__).parents[3]


@dataclass
class Probe:
    """A running `tests.support.probe_service`."""

    process: asyncio.subprocess.Process

    async def line(self) -> str:
        assert self.process.stdout is not None
        raw = await soon(self.process.stdout.readline())
        return raw.decode().strip()

    async def end(self) -> tuple[int, str, str]:
        """Exit code, rest of stdout, stderr."""
        out, err = await soon(self.process.communicate())
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def probe(mode: str, nats_url: str, home: Path, **env: str) -> AsyncIterator[Probe]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.probe_service", mode),
        cwd=ROOT,
        env=os.environ
        | {"RORQUAL_NATS_URL": nats_url, "RORQUAL_HOME": str(home), "RORQUAL_SHM_BYTES": "8388608"}
        | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Probe(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_sigterm_drains_reports_it_and_exits_cleanly(
    nats_server: NatsServer, caller_bus: Bus, tmp_path: Path
) -> None:
    reports: list[load_pb2.LoadReport] = []

    async def on_load(report: load_pb2.LoadReport, _context: MessageContext) -> None:
        reports.append(report)

    await caller_bus.subscribe(subjects.all_loads(), load_pb2.LoadReport, on_load)
    async with probe("serve", nats_server.url, tmp_path, PROBE_DRAIN_S="0.3") as running:
        assert await running.line() == "ready"
        await until(lambda: reports)
        request = router_pb2.PlaceRequest(request_id="slow", num_context_tokens=300)
        asking = asyncio.create_task(
            caller_bus.request(
                subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=WAIT_S
            )
        )
        assert await running.line() == "asked"
        running.process.send_signal(signal.SIGTERM)
        code, out, err = await running.end()
    assert code == 0
    assert out.split() == ["draining", "drained", "closed"]
    assert (await asking).placement.decode_id == "slow"
    await until(lambda: reports[-1].draining)
    assert [r.seq for r in reports] == list(range(1, len(reports) + 1))
    assert {r.num_active_requests for r in reports} == {3}
    assert len({r.incarnation for r in reports}) == 1
    assert not reports[0].draining
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["service"] for line in lines} == {"probe"}


async def test_while_draining_others_get_the_new_requests(
    nats_server: NatsServer, caller_bus: Bus, tmp_path: Path
) -> None:
    long_drain = {"PROBE_DRAIN_S": "600", "RORQUAL_DRAIN_S": "600"}
    async with (
        probe("serve", nats_server.url, tmp_path / "a", **long_drain) as leaving,
        probe("serve", nats_server.url, tmp_path / "b") as staying,
    ):
        assert await leaving.line() == await staying.line() == "ready"
        leaving.process.send_signal(signal.SIGTERM)
        assert await leaving.line() == "draining"
        request = router_pb2.PlaceRequest(request_id="r")
        for _ in range(20):
            await caller_bus.request(
                subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=WAIT_S
            )
        both = await discovered(caller_bus, lambda found: len([i for i in found if i.load]) == 2)
        found = {i.pid: i for i in both}
        assert found[leaving.process.pid].draining
        assert not found[staying.process.pid].draining
        assert found[leaving.process.pid].num_requests == 0
        assert found[staying.process.pid].num_requests == 20


async def test_a_shutdown_message_stops_one_instance(
    nats_server: NatsServer, caller_bus: Bus, tmp_path: Path
) -> None:
    async with probe("serve", nats_server.url, tmp_path, RORQUAL_INSTANCE_ID="probe-9") as running:
        assert await running.line() == "ready"
        await caller_bus.request(
            subjects.shutdown("probe", "probe-9"), ShutdownRequest(), Empty, timeout_s=WAIT_S
        )
        code, out, _ = await running.end()
    assert (code, out.split()[-1]) == (0, "closed")


async def test_a_shutdown_message_says_how_long_the_drain_may_take(
    nats_server: NatsServer, caller_bus: Bus, tmp_path: Path
) -> None:
    env = {"RORQUAL_INSTANCE_ID": "probe-9", "RORQUAL_DRAIN_S": "600"}
    async with probe("stuck", nats_server.url, tmp_path, **env) as running:
        assert await running.line() == "ready"
        request = ShutdownRequest(drain_s=0.3)
        await caller_bus.request(
            subjects.shutdown("probe", "probe-9"), request, Empty, timeout_s=WAIT_S
        )
        code, out, _ = await running.end()
    assert (code, out.split()) == (0, ["draining", "closed"])


async def test_a_drain_that_takes_too_long_is_cut(nats_server: NatsServer, tmp_path: Path) -> None:
    async with probe("stuck", nats_server.url, tmp_path, RORQUAL_DRAIN_S="0.3") as running:
        assert await running.line() == "ready"
        running.process.send_signal(signal.SIGTERM)
        code, out, _ = await running.end()
    assert (code, out.split()) == (0, ["draining", "closed"])


async def test_a_close_that_gets_stuck_is_cut_and_says_where(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with probe("stuck-close", nats_server.url, tmp_path) as running:
        assert await running.line() == "ready"
        running.process.send_signal(signal.SIGTERM)
        code, out, err = await running.end()
    assert (code, out.split()) == (1, ["draining", "drained"])
    assert "most recent call first" in err


async def test_it_stops_while_the_broker_is_away(nats_server: NatsServer, tmp_path: Path) -> None:
    async with probe("serve", nats_server.url, tmp_path) as running:
        assert await running.line() == "ready"
        await nats_server.kill()
        running.process.send_signal(signal.SIGTERM)
        code, out, err = await running.end()
    assert code == 0
    assert out.split() == ["draining", "drained", "closed"]
    assert "Traceback" not in err


async def test_a_collector_that_is_away_does_not_delay_the_end(
    nats_server: NatsServer, caller_bus: Bus, tmp_path: Path
) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with probe("serve", nats_server.url, tmp_path, RORQUAL_OTLP_ENDPOINT=endpoint) as running:
        assert await running.line() == "ready"
        request = router_pb2.PlaceRequest(request_id="r")
        await caller_bus.request(
            subjects.router_place(), request, router_pb2.PlaceReply, timeout_s=WAIT_S
        )
        running.process.send_signal(signal.SIGTERM)
        code, _, _ = await running.end()
    assert code == 0


async def test_a_second_signal_ends_at_once(nats_server: NatsServer, tmp_path: Path) -> None:
    async with probe("stuck", nats_server.url, tmp_path, RORQUAL_DRAIN_S="600") as running:
        assert await running.line() == "ready"
        running.process.send_signal(signal.SIGTERM)
        assert await running.line() == "draining"
        running.process.send_signal(signal.SIGTERM)
        code, _, _ = await running.end()
    assert code == 128 + signal.SIGTERM


async def test_a_failed_background_task_ends_with_code_1(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with probe("fail", nats_server.url, tmp_path) as running:
        code, out, err = await running.end()
    assert code == 1
    assert "draining" in out
    assert "the background task is broken" in err


async def test_sigterm_during_the_start_ends_it(nats_server: NatsServer, tmp_path: Path) -> None:
    async with probe("slow-start", nats_server.url, tmp_path) as running:
        assert await running.line() == "starting"
        running.process.send_signal(signal.SIGTERM)
        code, _, err = await running.end()
    assert code == 143
    assert "Traceback" not in err


async def test_a_thread_that_never_ends_does_not_keep_the_process(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with probe("busy-thread", nats_server.url, tmp_path) as running:
        assert await running.line() == "ready"
        running.process.send_signal(signal.SIGTERM)
        code, _, _ = await running.end()
    assert code == 0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RORQUAL_CONNECT_TIMEOUT_S": "0.5"}, "no NATS server at nats://127.0.0.1:"),
        ({"RORQUAL_SHM_BYTES": "lots"}, "wrong settings: RORQUAL_SHM_BYTES: "),
    ],
    ids=["no broker", "wrong setting"],
)
async def test_a_failed_start_is_one_clear_line_and_code_1(
    tmp_path: Path, env: dict[str, str], message: str
) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    async with probe("serve", url, tmp_path, **env) as running:
        code, _, err = await running.end()
    assert code == 1
    assert err.splitlines()[-1].startswith(message)
    assert "Traceback" not in err


async def test_a_tracked_task_does_not_inherit_the_requests_deadline(
    runtime_settings: RuntimeSettings,
) -> None:
    from rorqual_runtime.context import current_deadline_s, inherit_deadline

    async def look() -> float | None:
        return current_deadline_s()

    async with open_service("probe", runtime_settings) as ctx:
        with inherit_deadline(time.monotonic() + 1):
            assert await ctx.track(look()) is None
            assert current_deadline_s() is not None
