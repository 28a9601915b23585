"""Instances as processes of this machine."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rorqual_policy import Target
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import get_logger

from rorqual_scaler.convert import Empty, ShutdownRequest
from rorqual_scaler.drivers import Driver, OwnInstances

SHUTDOWN_REQUEST_S = 2.0
MOST_CLOSING_S = 5.0
"""Of its drain, what an instance has at most to close when nothing is under way any more."""
MAX_RESTART_PAUSE_S = 60.0
MAX_KEPT_FILES = 32
"""Logs, and traces, of instances that are gone."""

log = get_logger(__name__)


@dataclass(slots=True)
class Child:
    """One process that this scaler started."""

    service: str
    instance_id: str
    process: asyncio.subprocess.Process
    report_by_s: float
    """Until when it may take to send its first load report."""
    has_reported: bool = False
    stop: asyncio.Task[None] | None = None
    """Its drain, once it has been told to stop."""


@dataclass(frozen=True, slots=True)
class LocalDriverParams:
    """Modules to run and bounds of starting and stopping."""

    modules: Mapping[str, str]
    """By service, where it is not `rorqual_<service>`."""
    home: Path
    """Run directory: their logs are in logs/, their traces in traces/."""
    start_deadline_s: float
    drain_s: float
    kill_after_s: float
    restart_pause_s: float
    secrets_dir: Path | None = None
    """With the files of every identity, one folder each; None: they have none."""


@dataclass(slots=True)
class _Failures:
    """Starts of a service that ended early, in a row."""

    num: int = 0
    retry_at_s: float = field(default=0.0)


class LocalDriver(Driver):
    """Starts instances with the scaler's own environment, but as who they are, and stops only
    those."""

    name = "local"

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        params: LocalDriverParams,
        track: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._params = params
        self._track = track
        self._children: dict[str, Child] = {}
        self._failures: dict[str, _Failures] = {}
        self._is_closed = False

    def own(self, service: str, live_ids: Collection[str]) -> OwnInstances:
        children = [c for c in self._children.values() if c.service == service]
        pending = {
            c.instance_id: c.report_by_s for c in children if not c.has_reported and not c.stop
        }
        return OwnInstances(pending, frozenset(c.instance_id for c in children if c.stop))

    def removable(self, service: str, live_ids: Collection[str]) -> Collection[str]:
        own = (c for c in self._children.values() if c.service == service)
        return [child.instance_id for child in own if not child.stop]

    async def grow(self, service: str, target: Target) -> bool:
        """Start more processes, unless the last ones failed just now."""
        num_started = 0
        for _ in range(target.num_change):
            if self._is_closed or not await self._start(service):
                break
            num_started += 1
        return num_started > 0

    async def shrink(self, service: str, target: Target, instance_ids: Sequence[str]) -> bool:
        children = [self._children[i] for i in instance_ids if i in self._children]
        for child in children:
            if not child.stop:
                self._begin_stop(child, self._params.drain_s)
        return bool(children)

    async def _start(self, service: str) -> bool:
        failures = self._failures.setdefault(service, _Failures())
        if self._clock.monotonic_s() < failures.retry_at_s:
            return False
        instance_id = f"{service}-scaled-{secrets.token_hex(4)}"
        try:
            process = await self._spawn(service, instance_id)
        except OSError:
            log.exception("an instance could not be started", extra={"scaled_service": service})
            self._note_failure(service)
            return False
        deadline_s = self._clock.monotonic_s() + self._params.start_deadline_s
        child = Child(service, instance_id, process, deadline_s)
        self._children[instance_id] = child
        self._track(self._watch(child))
        log.info("instance started", extra=_facts(child))
        return True

    def note_reporting(self, service: str, instance_id: str) -> None:
        child = self._children.get(instance_id)
        if child is not None and not child.has_reported:
            child.has_reported = True
            self._failures.pop(service, None)

    def stop_overdue(self) -> None:
        now_s = self._clock.monotonic_s()
        for child in list(self._children.values()):
            if not child.has_reported and not child.stop and child.report_by_s <= now_s:
                log.error("an instance never reported", extra=_facts(child))
                self._note_failure(child.service)
                self._begin_stop(child, 0.0)

    async def close(self, timeout_s: float) -> None:
        """Stop all children side by side, the drain cut so that SIGKILL still fits in."""
        self._is_closed = True
        drain_s = max(0.0, timeout_s - self._params.kill_after_s - SHUTDOWN_REQUEST_S)
        children = list(self._children.values())
        try:
            await asyncio.gather(*(self._stop(child, drain_s) for child in children))
        finally:
            for child in children:
                _kill(child.process)
            await asyncio.gather(*(child.process.wait() for child in children))

    async def _spawn(self, service: str, instance_id: str) -> asyncio.subprocess.Process:
        for directory in (self._params.home / "logs", self._params.home / "traces"):
            drop_oldest(directory, MAX_KEPT_FILES, spared=self._children)
        log_path = self._params.home / "logs" / f"{instance_id}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "rorqual_scaler.child",
            str(os.getpid()),
            self._params.modules.get(service, f"rorqual_{service}"),
        ]
        with log_path.open("ab") as out:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **self._identity(service, instance_id)},
                start_new_session=True,
            )

    def _identity(self, service: str, instance_id: str) -> dict[str, str]:
        own = {"RORQUAL_INSTANCE_ID": instance_id}
        if self._params.secrets_dir is not None:
            own["RORQUAL_SECRETS_DIR"] = str(self._params.secrets_dir / service)
        return own

    async def _watch(self, child: Child) -> None:
        """Notice the end of a child, wanted or not."""
        code = await child.process.wait()
        self._children.pop(child.instance_id, None)
        if child.stop or self._is_closed:
            log.info("instance stopped", extra={**_facts(child), "exit_code": code})
            return
        log.error("an instance died", extra={**_facts(child), "exit_code": code})
        if not child.has_reported:
            self._note_failure(child.service)

    def _note_failure(self, service: str) -> None:
        failures = self._failures.setdefault(service, _Failures())
        pause_s = min(self._params.restart_pause_s * 2**failures.num, MAX_RESTART_PAUSE_S)
        failures.retry_at_s = self._clock.monotonic_s() + pause_s
        failures.num = min(failures.num + 1, 16)

    def _begin_stop(self, child: Child, drain_s: float) -> None:
        child.stop = self._track(self._stop(child, drain_s))

    async def _stop(self, child: Child, drain_s: float) -> None:
        """Shutdown message, then SIGTERM if it does not go, then SIGKILL."""
        process = child.process
        log.info("stopping instance", extra=_facts(child))
        is_told = drain_s > 0 and await self._ask_to_stop(child, drain_s)
        if is_told and await _ends(process, drain_s):
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        if await _ends(process, self._params.kill_after_s):
            return
        log.error("instance killed: it did not stop", extra=_facts(child))
        _kill(process)
        await process.wait()

    async def _ask_to_stop(self, child: Child, drain_s: float) -> bool:
        """Whether the instance heard it; one that is still starting does not."""
        request = ShutdownRequest(drain_s=drain_s - min(MOST_CLOSING_S, drain_s / 4))
        try:
            await self._bus.request(
                subjects.shutdown(child.service, child.instance_id),
                request,
                Empty,
                timeout_s=SHUTDOWN_REQUEST_S,
                absent_timeout_s=SHUTDOWN_REQUEST_S / 4,
            )
        except ServingError:
            return False
        return True


def drop_oldest(directory: Path, num_kept: int, *, spared: Collection[str]) -> None:
    """Of the files of scaled instances only the newest stay, and those of the ids spared: every
    instance has a name of its own, so nothing else would ever end them."""
    files = [p for p in directory.glob("*-scaled-*") if p.name.partition(".")[0] not in spared]
    files.sort(key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - num_kept)]:
        path.unlink(missing_ok=True)


def _facts(child: Child) -> dict[str, Any]:
    return {
        "scaled_service": child.service,
        "scaled_instance_id": child.instance_id,
        "scaled_pid": child.process.pid,
    }


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _ends(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
