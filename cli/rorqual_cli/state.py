"""home/run: which fleet runs in a home directory, and what belongs to it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from rorqual_cli.identity import ProcessIdentity
from rorqual_cli.problems import CliError, ExitCode


@dataclass(frozen=True)
class ProcessRecord:
    """One process that the fleet started."""

    name: str
    pid: int
    start_ticks: int

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_ticks)


@dataclass(frozen=True)
class FleetState:
    """Content of fleet.json."""

    supervisor: ProcessRecord
    base_url: str
    nats_url: str
    redis_url: str
    is_ready: bool = False
    stop_s: float = 90.0
    """Bound of its stop, drains included."""
    processes: list[ProcessRecord] = field(default_factory=list)

    def write(self, home: Path) -> None:
        """Replace fleet.json at once: a reader sees the old or the new state, never half."""
        path = state_path(home)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self), indent=2) + "\n")
        temporary.replace(path)


def state_path(home: Path) -> Path:
    return home / "run" / "fleet.json"


def read_state(home: Path) -> FleetState | None:
    """The last fleet of this home, running or not; None when there was none or it ended well."""
    try:
        fields = json.loads(state_path(home).read_text())
        supervisor = ProcessRecord(**fields.pop("supervisor"))
        processes = [ProcessRecord(**record) for record in fields.pop("processes")]
        return FleetState(supervisor=supervisor, processes=processes, **fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def running_state(home: Path) -> FleetState:
    """Raises: CliError when no fleet runs in this home."""
    state = read_state(home)
    if state is None or not state.supervisor.identity.is_alive:
        raise CliError(
            f"no fleet is running in {home}",
            "start one with `make serve` or `rorqual up`",
            ExitCode.NOT_RUNNING,
        )
    return state


def remove_state(home: Path) -> None:
    state_path(home).unlink(missing_ok=True)


def lock_home(home: Path) -> IO[str]:
    """Hold the returned file open to own the home directory; the kernel lets go when we die.

    Raises: CliError when another fleet holds it, or left processes behind, or it can't be written.
    """
    lock = _open_lock(home / "run" / "fleet.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        state = read_state(home)
        where = f" at {state.base_url} (pid {state.supervisor.pid})" if state else ""
        raise _already_running(f"a fleet is running in {home} already{where}") from None
    left = _left_behind(home)
    if left:
        lock.close()
        raise _already_running(f"processes of an earlier fleet still run: {', '.join(left)}")
    return lock


def _open_lock(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise CliError(
            f"{path.parent} can't be written ({error.strerror})", "use another --home"
        ) from error


def own_record(name: str) -> ProcessRecord:
    """Record of the calling process."""
    return record_of(name, os.getpid())


def record_of(name: str, pid: int) -> ProcessRecord:
    """Raises: ProcessLookupError when it does not run."""
    identity = ProcessIdentity.of(pid)
    return ProcessRecord(name, identity.pid, identity.start_ticks)


def _left_behind(home: Path) -> list[str]:
    state = read_state(home)
    if state is None:
        return []
    return [record.name for record in state.processes if record.identity.is_alive]


def _already_running(message: str) -> CliError:
    return CliError(
        message,
        "stop it with `make stop` or `rorqual down`, or use another --home",
        ExitCode.ALREADY_RUNNING,
    )
