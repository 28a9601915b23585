"""Docker Compose as an orchestrator, by its command line."""

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from rorqual_scaler.counted_driver import Orchestrator
from rorqual_scaler.drivers import DriverError

_MAX_SHOWN_CHARS = 400
_KILLED_WAIT_S = 5.0
"""A killed call is waited for so long; what still hangs then is the kernel's."""


@dataclass(frozen=True, slots=True)
class ComposeParams:
    """How Compose is called."""

    command: tuple[str, ...]
    """`docker compose`, or `docker-compose` of older machines"""
    file: Path
    project: str
    """Empty = the name of the file's folder."""
    timeout_s: float
    """Of one call; pulling images is no part of it."""


class Compose(Orchestrator):
    """Counts are those of `up --scale`; Compose takes away the newest containers first, each
    with the `stop_grace_period` of its service."""

    name = "compose"

    def __init__(self, params: ComposeParams) -> None:
        self._params = params
        self._one_at_a_time = asyncio.Lock()

    async def read_count(self, service: str) -> int:
        out = await self._run("ps", "--quiet", service)
        return len(out.split())

    async def write_count(self, service: str, num: int) -> None:
        scale = f"{service}={num}"
        await self._run("up", "--detach", "--no-deps", "--no-recreate", "--scale", scale, service)

    async def _run(self, *arguments: str) -> str:
        """Standard output of one call. Raises: DriverError."""
        params = self._params
        chosen = ["--file", str(params.file)]
        if params.project:
            chosen += ["--project-name", params.project]
        command = (*params.command, *chosen, *arguments)
        what = " ".join(command)
        async with self._one_at_a_time:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise DriverError(what, str(error)) from error
            return await self._output(process, what)

    async def _output(self, process: asyncio.subprocess.Process, what: str) -> str:
        try:
            out, problems = await asyncio.wait_for(process.communicate(), self._params.timeout_s)
        except TimeoutError:
            raise DriverError(what, f"took longer than {self._params.timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                await _end(process)
        if process.returncode:
            said = problems.decode(errors="replace").strip()[-_MAX_SHOWN_CHARS:]
            raise DriverError(what, f"exit code {process.returncode}: {said}")
        return out.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """With all that it started: `docker` runs Compose as a child, which has the pipes too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _KILLED_WAIT_S)
