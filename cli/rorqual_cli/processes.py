"""One child process: start, watch, stop, with its log in a file."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOG_TAIL_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessSpec:
    """What to run and under which name."""

    name: str
    """Instance id, e.g. prefill-1."""
    service: str
    """Kind, e.g. prefill."""
    command: Sequence[str]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment."""


class ManagedProcess:
    """A child in its own session, so that Ctrl-C reaches it only through us; should we die
    without stopping it, the kernel sends it SIGTERM."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """None before the first start."""
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it; its output is appended to the log."""
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                env={**os.environ, **self.spec.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    async def wait(self) -> int:
        """The exit code, once it has ended."""
        assert self._process is not None, "wait before start"
        return await self._process.wait()

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL after `grace_s`; whether it ended by itself."""
        if not self.is_running:
            return True
        self.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
                return True
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            await self.wait()
            return False

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing when it has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def log_tail(self) -> str:
        """The last line of the log that says something."""
        try:
            with self.spec.log_path.open("rb") as log:
                log.seek(max(0, self.spec.log_path.stat().st_size - _LOG_TAIL_BYTES))
                lines = log.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return _said(lines[-1])[:400] if lines else ""


def _said(line: str) -> str:
    """What a log line says to a person."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    return ": ".join(str(record[key]) for key in ("message", "exception") if key in record)


def start_fresh_log(path: Path) -> None:
    """Keep the log of the last run as `<name>.1`."""
    with suppress(FileNotFoundError):
        path.replace(path.with_name(path.name + ".1"))


def bound_log(path: Path, max_bytes: int) -> None:
    """Put a log that has grown longer aside as `<name>.1`. Its writer appends, so it goes on in the
    same file from the beginning; lines it writes at this very moment may be lost."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def end_with_parent() -> None:
    """In a new child: SIGTERM when the process that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
