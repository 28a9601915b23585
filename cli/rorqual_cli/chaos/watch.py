"""A look at a fleet whose broker may just be away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import nats.errors
from nats.aio.msg import Msg
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime import subjects
from rorqual_runtime.discovery import Instance, discover

from rorqual_cli.chaos.memory import Sample
from rorqual_cli.fleet import Fleet
from rorqual_cli.idle import Held, holders
from rorqual_cli.problems import CliError
from rorqual_cli.readiness import connect

_LOOK_S = 0.3
_SERVERS = ("nats", "redis")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FleetWatch:
    """Who is ready, who holds what, and how much memory each process has."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def instances(self) -> Sequence[Instance]:
        """What discovery shows; nothing while the broker is away."""
        try:
            nc = await connect(self._fleet.bus_address())
        except CliError:
            await asyncio.sleep(_LOOK_S)
            return ()
        try:
            return await discover(nc, _LOOK_S)
        except nats.errors.Error:
            return ()
        finally:
            await nc.close()

    async def wait_ready(self, timeout_s: float) -> None:
        """Return once every service says ready. Raises: TimeoutError naming the others."""
        end_s = time.monotonic() + timeout_s
        while missing := self._services - {i.id for i in await self.instances() if i.ready}:
            if time.monotonic() > end_s:
                raise TimeoutError(f"not ready after {timeout_s:g} s: {', '.join(sorted(missing))}")

    @asynccontextmanager
    async def hearing(self, on_report: Callable[[LoadReport], None]) -> AsyncIterator[None]:
        """Every load report meanwhile, as the scaler hears them; the broker has to stay."""
        nc = await connect(self._fleet.bus_address("scaler"))

        async def on_message(message: Msg) -> None:
            on_report(LoadReport.FromString(message.data))

        try:
            await nc.subscribe(subjects.all_loads(), cb=on_message)
            yield
        finally:
            await nc.close()

    async def settle(self, timeout_s: float) -> tuple[dict[str, Held], float]:
        """What is still held when nobody holds anything, or the time is up, by instance id; and
        when it was looked at."""
        end_s = time.monotonic() + timeout_s
        while True:
            looked_s = time.monotonic()
            found = await self.instances()
            held = holders(found)
            silent = self._services - {i.id for i in found if i.load is not None}
            if not (held or silent) or looked_s > end_s:
                return held, looked_s

    def memory(self, at_s: float) -> list[Sample]:
        """Of each process that runs. at_s: what the samples say of their time."""
        found = []
        for name, process in self._fleet.processes.items():
            if process.is_running and process.pid is not None:
                with suppress(OSError, IndexError):  # it has just ended
                    pages = Path(f"/proc/{process.pid}/statm").read_text().split()
                    resident, shared = (int(count) * _PAGE_BYTES for count in pages[1:3])
                    found.append(Sample(at_s, name, process.pid, resident, shared))
        return found

    @property
    def _services(self) -> set[str]:
        return set(self._fleet.processes) - set(_SERVERS)
