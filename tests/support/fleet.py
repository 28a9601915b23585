"""The real fleet for tests: NATS, Redis and every service as processes, on free ports.

    def test_something(fleet: FleetFactory) -> None:
        running = fleet(prefill=2)
        ... running.base_url ...

The fleet is watched by a thread with an event loop of its own, so one fleet can serve the tests
of a whole module, whatever their loops: use `running_fleet` in a fixture of wider scope.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from rorqual_cli.address import BusAddress
from rorqual_cli.fleet import Fleet
from rorqual_cli.idle import held
from rorqual_cli.model import DEFAULT_MODEL, ensure_model
from rorqual_cli.options import FleetOptions
from rorqual_cli.readiness import connect
from rorqual_proto.v1 import load_pb2
from rorqual_runtime.discovery import Instance, discover

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 90.0
CALL_TIMEOUT_S = 60.0
PATIENT = {
    "RORQUAL_ROUTER_MATCH_TIMEOUT_S": "15",
    "RORQUAL_KVMETA_REDIS_TIMEOUT_S": "10",
    "RORQUAL_KVMETA_REDIS_WRITE_TIMEOUT_S": "10",
    "RORQUAL_RECIPE_STORE_TIMEOUT_S": "10",
    "RORQUAL_PREFILL_CALIBRATE_S": "0",
}
"""A hint that is late on a busy machine is waited for: tests count cached tokens. Each fleet has a
home of its own, so each would calibrate."""

_REFUSAL = re.compile("permissions violation|noperm", re.IGNORECASE)
"""As NATS and Redis say it."""
_LOSS = "the message bus is gone"
_ANSWER = "_inbox."

SERVERS = {"nats", "redis"}

T = TypeVar("T")


class SilentReporter:
    """Says nothing; the tests say what they find."""

    def say(self, text: str) -> None:
        return

    def waiting(self, text: str) -> None:
        return


class RunningFleet:
    """Handle on a fleet. All methods block and may be called from any thread."""

    def __init__(self, options: FleetOptions) -> None:
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._thread.start()
        self._fleet = self._call(_make_fleet(options), START_TIMEOUT_S)

    @property
    def base_url(self) -> str:
        """Of the gateway, without /v1."""
        return self._fleet.base_url

    def bus_address(self, identity: str = "cli") -> BusAddress:
        """Of its NATS, for one of its identities."""
        return self._fleet.bus_address(identity)

    @property
    def redis_url(self) -> str:
        return self._fleet.endpoints.redis_url

    @property
    def home(self) -> Path:
        """Run directory: logs/ traces/ store/ run/."""
        return self._fleet.home

    @property
    def pids(self) -> dict[str, int]:
        """Running processes by instance id (`prefill-1`, `nats`, ...)."""
        return {
            name: process.pid
            for name, process in self._fleet.processes.items()
            if process.is_running and process.pid is not None
        }

    def start(self) -> None:
        """Return once the fleet answers. Raises: CliError."""
        self._call(self._fleet.start(), START_TIMEOUT_S)

    def stop(self) -> None:
        """Drain and stop; kill what is left. May be called twice."""
        if not self._thread.is_alive():
            return
        try:
            self._call(self._fleet.stop(), STOP_TIMEOUT_S)
        finally:
            self._fleet.kill()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CALL_TIMEOUT_S)
            self._loop.close()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> str:
        """Signal one process, by instance id or by service (then the first that runs).

        Returns its instance id. Raises: LookupError when no such process runs.
        """
        for instance_id, process in self._fleet.processes.items():
            if process.is_running and name in (instance_id, process.spec.service):
                process.send_signal(number)
                if number is signal.SIGKILL:
                    self._call(process.wait(), CALL_TIMEOUT_S)
                return instance_id
        raise LookupError(f"no process {name!r} runs; there are {', '.join(self.pids)}")

    def restart(self, name: str) -> None:
        """Start a process again that was killed, under its old identity."""
        self._call(self._fleet.processes[name].start(), CALL_TIMEOUT_S)

    def instances(self, timeout_s: float = 0.3) -> list[Instance]:
        """What NATS discovery shows, with load reports."""
        return self._call(_discover(self.bus_address(), timeout_s), CALL_TIMEOUT_S)

    def loads(self) -> dict[str, load_pb2.LoadReport]:
        """Load reports by instance id."""
        return {i.id: i.load for i in self.instances() if i.load is not None}

    def wait_ready(self, *names: str, timeout_s: float = 60.0) -> None:
        """Return once these instances say ready. Raises: TimeoutError that names the missing."""
        end_s = time.monotonic() + timeout_s
        while True:
            ready = {instance.id for instance in self.instances() if instance.ready}
            missing = set(names) - ready
            if not missing:
                return
            if time.monotonic() > end_s:
                raise TimeoutError(f"not ready after {timeout_s:.0f} s: {sorted(missing)}")

    def wait_idle(self, timeout_s: float = 30.0) -> None:
        """Return once nobody holds a request, lease, page or window.

        Raises: TimeoutError that says who holds what, and who does not report.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            loads = self.loads()
            held_by = {name: count for name, load in loads.items() if (count := held(load))}
            silent = set(self.pids) - loads.keys() - SERVERS
            if not held_by and not silent:
                return
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"after {timeout_s:.0f} s hold: {held_by}, silent: {sorted(silent)}"
                )

    def log(self, name: str) -> str:
        """What one process has logged."""
        with suppress(FileNotFoundError):
            return (self.home / "logs" / f"{name}.log").read_text(errors="replace")
        return ""

    def refused(self) -> list[str]:
        """What the servers did not let its processes do, as those logged it."""
        logs = [log.read_text(errors="replace") for log in (self.home / "logs").glob("*.log*")]
        return [line for log in logs for line in refusals(log)]

    def _call(self, coro: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coro, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise


def refusals(log: str) -> list[str]:
    """Of one process. Who has lost the bus meanwhile may not answer what it was asked before."""
    lines = [line for line in log.splitlines() if _REFUSAL.search(line)]
    return [line for line in lines if not (_LOSS in log and _ANSWER in line)]


FleetFactory = Callable[..., RunningFleet]


def fleet_options(
    home: Path,
    *,
    model: str = DEFAULT_MODEL,
    restart: bool = False,
    patient: bool = True,
    drain_s: float = 5.0,
    env: Mapping[str, str] | None = None,
    max_instances: Mapping[str, int] | None = None,
    **num_instances: int,
) -> FleetOptions:
    """Options of a test fleet: any free port, by default the default model of this checkout.

    restart: whether a killed process comes back by itself.
    patient: with PATIENT's longer waits; else with every time-out as it is shipped.
    num_instances: prefill=2, decode=2, ...; one of each service where nothing is said.
    """
    return FleetOptions(
        home=home,
        model=model,
        port=0,
        num_instances=num_instances,
        max_instances=max_instances or {},
        restart=restart,
        drain_s=drain_s,
        env={**(PATIENT if patient else {}), **(env or {})},
    )


@contextmanager
def running_fleet(home: Path, **options: Any) -> Iterator[RunningFleet]:
    """A fleet that answers, stopped at the end. `options` as in `fleet_options`."""
    if "RORQUAL_URL" in os.environ:
        pytest.skip("RORQUAL_URL: starts a fleet of its own")
    running = RunningFleet(fleet_options(home, **options))
    try:
        running.start()
        yield running
        refused = running.refused()
        assert not refused, f"NATS refused what a service needs: {refused[:3]}"
    finally:
        running.stop()


@pytest.fixture
def fleet() -> Iterator[FleetFactory]:
    """Starts fleets: `fleet(prefill=2, restart=True)`; each lives until the test ends."""
    with ExitStack() as stack:

        def start(**options: Any) -> RunningFleet:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rorqual-")))
            return stack.enter_context(running_fleet(home, **options))

        yield start


async def _make_fleet(options: FleetOptions) -> Fleet:
    model = options.model
    if model == DEFAULT_MODEL:  # prepared once a checkout, not once a test
        model = str(await ensure_model(model, ROOT / ".rorqual", lambda _line: None))
    return Fleet(_with_model(options, model), SilentReporter())


def _with_model(options: FleetOptions, model: str) -> FleetOptions:
    return dataclasses.replace(options, model=model)


async def _discover(address: BusAddress, timeout_s: float) -> list[Instance]:
    nc = await connect(address)
    try:
        return await discover(nc, timeout_s)
    finally:
        await nc.close()
