"""One service as a real process against a test's own broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rorqual_runtime.bus import Bus
from rorqual_runtime.discovery import Instance, discover

from tests.support.waiting import soon

READY_TIMEOUT_S = 60.0


@dataclass
class ServiceProcess:
    """A running service, its broker client and where it logs."""

    process: asyncio.subprocess.Process
    bus: Bus
    instance: Instance
    log_path: Path

    async def stop(self) -> int:
        """SIGTERM; the exit code. Raises: TimeoutError when it does not end in time."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await soon(self.process.wait())


@asynccontextmanager
async def service_process(
    name: str, bus: Bus, *, nats_url: str, home: Path, env: Mapping[str, str]
) -> AsyncIterator[ServiceProcess]:
    """`python -m rorqual_<name>`, ready; killed at the end if it still runs."""
    home.mkdir(parents=True, exist_ok=True)
    log_path = home / f"{name}.log"
    settings = {"RORQUAL_NATS_URL": nats_url, "RORQUAL_HOME": str(home)}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"rorqual_{name}"),
            env={**os.environ, **settings, **env},
            stderr=log,
        )
    try:
        instance = await _wait_ready(name, process, bus, log_path)
        yield ServiceProcess(process, bus, instance, log_path)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _wait_ready(
    name: str, process: asyncio.subprocess.Process, bus: Bus, log_path: Path
) -> Instance:
    async with asyncio.timeout(READY_TIMEOUT_S):
        while True:
            for instance in await discover(bus.client, timeout_s=0.1):
                if instance.service == name and instance.ready and instance.load is not None:
                    return instance
            if process.returncode is not None:
                raise RuntimeError(f"{name} ended: {log_path.read_text()[-2000:]}")
