"""Instances that an orchestrator keeps at a number: we say the number, it starts and stops them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_policy import Target
from rorqual_runtime.clock import Clock
from rorqual_runtime.logs import get_logger

from rorqual_scaler.drivers import Driver, DriverError, OwnInstances

MAX_RETRY_PAUSE_S = 60.0

log = get_logger(__name__)


class Orchestrator(ABC):
    """What keeps services at a number of instances."""

    name: str

    @abstractmethod
    async def read_count(self, service: str) -> int:
        """Instances that it keeps now. Raises: DriverError."""

    @abstractmethod
    async def write_count(self, service: str, num: int) -> None:
        """Keep so many from now on. Raises: DriverError."""

    async def prefer_to_stop(self, service: str, instance_ids: Sequence[str]) -> Collection[str]:
        """Take these away first; those that it will. Where it can't be told it has its own order.
        Raises: DriverError."""
        return ()

    async def close(self) -> None:
        """Let go of connections. Instances stay as they are."""
        return


@dataclass(frozen=True, slots=True)
class CountedDriverParams:
    """Bounds of waiting for an orchestrator."""

    services: tuple[str, ...]
    """Those that may change; others are neither read nor written."""
    start_deadline_s: float
    """An instance that it should have but that nobody has heard counts as capacity for so long."""
    drain_s: float
    """One that is to go may report for so long."""
    poll_s: float
    retry_pause_s: float
    """After a failure; doubles up to a minute."""


@dataclass(slots=True)
class _Service:
    """What is known of one service."""

    num_kept: int | None = None
    """None = the orchestrator has not said it yet."""
    missing_until_s: list[float] = field(default_factory=list)
    """One for each instance that it keeps and that does not report, the oldest first."""
    leaving_until_s: dict[str, float] = field(default_factory=dict)
    change: asyncio.Task[None] | None = None
    num_failures: int = 0
    retry_at_s: float = 0.0


class CountedDriver(Driver):
    """Writes wanted counts. They are absolute, so a lost or repeated one does no harm."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        clock: Clock,
        params: CountedDriverParams,
        track: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.name = orchestrator.name
        self._orchestrator = orchestrator
        self._clock = clock
        self._params = params
        self._track = track
        self._services = {service: _Service() for service in params.services}

    async def start(self) -> None:
        """Counts are read now, and again every poll_s: others may change them."""
        await self._read_all()
        self._track(self._poll())

    def own(self, service: str, live_ids: Collection[str]) -> OwnInstances:
        known, now_s = self._services.get(service), self._clock.monotonic_s()
        if known is None:
            return OwnInstances({}, ())
        known.leaving_until_s = {
            i: until_s
            for i, until_s in known.leaving_until_s.items()
            if i in live_ids and until_s > now_s
        }
        num_live = sum(1 for i in live_ids if i not in known.leaving_until_s)
        num_missing = max(0, (known.num_kept or 0) - num_live)
        del known.missing_until_s[: max(0, len(known.missing_until_s) - num_missing)]
        new = num_missing - len(known.missing_until_s)
        known.missing_until_s += [now_s + self._params.start_deadline_s] * new
        pending = {f"{service}+{n}": s for n, s in enumerate(known.missing_until_s)}
        return OwnInstances(pending, frozenset(known.leaving_until_s))

    def removable(self, service: str, live_ids: Collection[str]) -> Collection[str]:
        known = self._services.get(service)
        return [] if known is None else [i for i in live_ids if i not in known.leaving_until_s]

    async def grow(self, service: str, target: Target) -> bool:
        """Never below what is kept: desired counts leave out those that are overdue."""
        known = self._services.get(service)
        if known is None or known.num_kept is None or target.num_desired <= known.num_kept:
            return False
        return self._begin(known, service, target.num_desired, ())

    async def shrink(self, service: str, target: Target, instance_ids: Sequence[str]) -> bool:
        known = self._services.get(service)
        if known is None or known.num_kept is None or target.num_desired >= known.num_kept:
            return False
        return self._begin(known, service, target.num_desired, instance_ids)

    async def close(self, timeout_s: float) -> None:
        """What was asked for is finished or given up; the instances stay: they are not ours."""
        changes = [known.change for known in self._services.values() if known.change]
        if changes:
            await asyncio.wait(changes, timeout=timeout_s)
        await self._orchestrator.close()

    def _begin(self, known: _Service, service: str, num: int, chosen: Sequence[str]) -> bool:
        """One change at a time: decisions are made again and again, so none has to wait."""
        is_busy = known.change is not None and not known.change.done()
        if is_busy or self._clock.monotonic_s() < known.retry_at_s:
            return False
        known.change = self._track(self._change(service, num, chosen))
        return True

    async def _change(self, service: str, num: int, chosen: Sequence[str]) -> None:
        known = self._services[service]
        leaving: Collection[str] = ()
        try:
            if chosen:
                leaving = await self._orchestrator.prefer_to_stop(service, chosen)
            await self._orchestrator.write_count(service, num)
        except DriverError as error:
            self._note_failure(service, error)
            return
        log.info("count written", extra={"scaled_service": service, "num_instances": num})
        until_s = self._clock.monotonic_s() + self._params.drain_s
        known.leaving_until_s.update(dict.fromkeys(leaving, until_s))
        known.num_kept, known.num_failures = num, 0

    def _note_failure(self, service: str, error: DriverError) -> None:
        known = self._services[service]
        pause_s = min(self._params.retry_pause_s * 2**known.num_failures, MAX_RETRY_PAUSE_S)
        known.retry_at_s = self._clock.monotonic_s() + pause_s
        known.num_failures = min(known.num_failures + 1, 16)
        log.error("an orchestrator failed: %s", error, extra={"scaled_service": service})

    async def _poll(self) -> None:
        while True:
            await self._clock.sleep(self._params.poll_s)
            await self._read_all()

    async def _read_all(self) -> None:
        await asyncio.gather(*(self._read(service) for service in self._services))

    async def _read(self, service: str) -> None:
        known = self._services[service]
        before = known.change
        if before is not None and not before.done():
            return
        try:
            num = await self._orchestrator.read_count(service)
        except DriverError as error:
            log.warning("a count can't be read: %s", error, extra={"scaled_service": service})
            return
        if known.change is before:  # else what was read may be from before the change
            known.num_kept = num
