"""A scaler on a real broker, with a fleet that is made of load reports and stub processes."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
from rorqual_proto.v1 import load_pb2, scaler_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings
from rorqual_scaler.__main__ import make_driver
from rorqual_scaler.service import ScalerService
from rorqual_scaler.settings import ScalerSettings

from tests.support.waiting import WAIT_S

STUB = "tests.integration.scaler.stub_prefill"
QUICK = {
    "modules": {"prefill": STUB},
    "interval_s": 0.1,
    "window_s": 2.0,
    "up_after_s": 0.2,
    "down_after_s": 0.5,
    "down_pause_s": 0.1,
    "missing_after_s": 60.0,
    "drain_s": 20.0,
    "kill_after_s": 1.0,
    "restart_pause_s": 0.5,
    "silent_s": 3.0,
}


@dataclass
class Demand:
    """A router and baseline instances that exist only as load reports, ten times a second."""

    bus: Bus
    missed_tokens_per_s: float = 0.0
    baseline: dict[str, str] = field(default_factory=lambda: {"p0": "prefill", "d0": "decode"})
    seq: int = 0
    total: float = 0.0
    said_s: float = field(default_factory=time.monotonic)

    async def say(self) -> None:
        self.seq += 1
        now_s = time.monotonic()
        self.total += self.missed_tokens_per_s * (now_s - self.said_s)
        self.said_s = now_s
        router = load_pb2.RouterLoad(
            missed_prompt_tokens_total=int(self.total), submitted_requests_total=self.seq
        )
        reports = [load_pb2.LoadReport(service="router", instance_id="r0", router=router)]
        for instance_id, service in self.baseline.items():
            report = load_pb2.LoadReport(service=service, instance_id=instance_id)
            if service == "prefill":
                report.prefill.tokens_per_s = 1000.0
            else:
                report.decode.max_running = 8
            reports.append(report)
        for report in reports:
            report.incarnation, report.seq = 1, self.seq
            await self.bus.publish(subjects.load(report.service, report.instance_id), report)

    async def keep_saying(self) -> None:
        while True:
            await self.say()
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def running_scaler(settings: RuntimeSettings, **fields) -> AsyncIterator[ScalerService]:
    """A scaler that decides until the block ends, and then drains."""
    chosen = ScalerSettings(**{**QUICK, **fields})
    async with open_service("scaler", settings) as ctx:
        service = ScalerService(ctx, await make_driver(ctx, chosen), chosen)
        await service.start()
        try:
            yield service
        finally:
            await service.drain(WAIT_S)


def stub_pids(home: Path) -> list[int]:
    """Live stub processes of this test, by their run directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if STUB.encode() in command and state != "Z":
                environment = (entry / "environ").read_bytes()
                if f"RORQUAL_HOME={home}".encode() in environment:
                    found.append(int(entry.name))
    return found


def target(scaler: ScalerService, service: str = "prefill") -> scaler_pb2.ServiceTarget:
    """The last decision on a service; empty before the first."""
    if scaler.decision is None:
        return scaler_pb2.ServiceTarget()
    return next(t for t in scaler.decision.targets if t.service == service)


@pytest.fixture
def child_env(runtime_settings, monkeypatch) -> None:
    """What the scaler's children inherit."""
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RORQUAL_NATS_URL", runtime_settings.nats_url)
    monkeypatch.setenv("RORQUAL_HOME", str(runtime_settings.home))
    monkeypatch.setenv("RORQUAL_SHM_BYTES", str(1 << 20))


@pytest_asyncio.fixture
async def bus(runtime_settings) -> AsyncIterator[Bus]:
    bus = await Bus.connect(runtime_settings, "fake", instance_id="fake-1")
    yield bus
    await bus.close()


@pytest_asyncio.fixture
async def demand(bus) -> AsyncIterator[Demand]:
    demand = Demand(bus)
    saying = asyncio.create_task(demand.keep_saying())
    yield demand
    saying.cancel()
