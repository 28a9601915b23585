"""Faults of a plan, done to a fleet and mended again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rorqual_cli.chaos.clocks import Clocks
from rorqual_cli.chaos.disk import Disk
from rorqual_cli.chaos.plan import Fault, Kind
from rorqual_cli.chaos.relay_process import FarRelay
from rorqual_cli.chaos.watch import FleetWatch
from rorqual_cli.fleet import Fleet
from rorqual_cli.readiness import wait_for_port

READY_TIMEOUT_S = 180.0
_POLL_S = 0.05
_PORT_TIMEOUT_S = 20.0
_REFILL_S = 0.1


@dataclass(frozen=True, slots=True)
class Struck:
    """When a fault struck, and how long after that its target was whole again."""

    at_s: float
    back_s: float


class Injector:
    """relays: by the kind of fault they are for, and instance id."""

    def __init__(
        self,
        fleet: Fleet,
        watch: FleetWatch,
        *,
        disk: Disk,
        clocks: Clocks,
        relays: Mapping[tuple[Kind, str], FarRelay],
    ) -> None:
        self._fleet = fleet
        self._watch = watch
        self._disk = disk
        self._clocks = clocks
        self._relays = relays
        self._dump = fleet.home / "redis" / "dump.rdb"

    def obstacle(self, fault: Fault) -> str:
        """Why this fault can't be made here; empty = it can."""
        if fault.kind is Kind.FULL_DISK and not self._disk.can_fill:
            return "no file system may be mounted here (needs root)"
        return ""

    async def strike(self, fault: Fault) -> Struck:
        """Make it, mend it after its time, and return once all of the fleet is ready again.

        Raises: TimeoutError naming who is not.
        """
        at_s = time.monotonic()
        if fault.kind is Kind.DRAIN:
            await self._fleet.renew(fault.target)
            await self._watch.wait_ready(READY_TIMEOUT_S)
            return Struck(at_s, time.monotonic() - at_s)
        killed = _killed_by(fault)
        pid = self._fleet.processes[killed].pid if killed else None
        self._begin(fault)
        await self._last(fault)
        self._mend(fault)
        if killed:
            await self._started_again(killed, pid)
        await self._watch.wait_ready(READY_TIMEOUT_S)
        return Struck(at_s, time.monotonic() - at_s)

    def _begin(self, fault: Fault) -> None:
        if fault.kind in (Kind.HALF_OPEN, Kind.HALF_OPEN_REDIS):
            self._relays[fault.kind, fault.target].freeze()
        elif fault.kind is Kind.FULL_DISK:
            self._disk.fill()
        elif fault.kind is Kind.CLOCK:
            self._clocks.jump(fault.by_s)
        elif fault.kind is Kind.STOP:
            self._fleet.processes[fault.target].send_signal(signal.SIGSTOP)
        else:
            if fault.kind is Kind.EMPTY:
                self._dump.unlink(missing_ok=True)
            self._fleet.processes[fault.target].send_signal(signal.SIGKILL)

    async def _last(self, fault: Fault) -> None:
        """A disk stays full: what others delete is taken, too."""
        end_s = time.monotonic() + fault.lasts_s
        while fault.kind is Kind.FULL_DISK and time.monotonic() < end_s:
            await asyncio.sleep(_REFILL_S)
            self._disk.fill()
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))

    def _mend(self, fault: Fault) -> None:
        if fault.kind is Kind.FULL_DISK:
            self._disk.free()
        elif fault.kind is Kind.CLOCK:
            self._clocks.jump(0.0)
        elif fault.kind is Kind.STOP:
            self._fleet.processes[fault.target].send_signal(signal.SIGCONT)

    async def _started_again(self, target: str, old_pid: int | None) -> None:
        """The fleet itself does that. Raises: TimeoutError."""
        process = self._fleet.processes[target]
        end_s = time.monotonic() + READY_TIMEOUT_S
        while not process.is_running or process.pid == old_pid:
            if time.monotonic() > end_s:
                raise TimeoutError(f"{target} was not started again in {READY_TIMEOUT_S:g} s")
            await asyncio.sleep(_POLL_S)
        ports = {"nats": self._fleet.endpoints.nats_port, "redis": self._fleet.endpoints.redis_port}
        if target in ports:
            await wait_for_port(process, ports[target], _PORT_TIMEOUT_S)


def _killed_by(fault: Fault) -> str:
    """The process that is another one behind this fault; "" = none."""
    if fault.kind is Kind.FULL_DISK:
        return "nats"
    return fault.target if fault.kind in (Kind.KILL, Kind.EMPTY) else ""
