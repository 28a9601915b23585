"""A disk that was full under NATS: once there is room the fleet's queue works again by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rorqual_cli.chaos.disk import Disk, open_disk
from rorqual_cli.full_disk import FailedWrites, start_anew_after_full_disk
from rorqual_cli.processes import ManagedProcess, ProcessSpec
from rorqual_cli.readiness import wait_for_port
from rorqual_cli.servers import free_port, nats_binary
from rorqual_cli.supervisor import supervise
from rorqual_runtime.bus import Bus
from rorqual_runtime.queue import WorkQueue
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import JOBS, job, put_job
from tests.support.waiting import WAIT_S, soon, until

DISK_BYTES = 128 << 20


async def start_nats(disk: Disk, log: Path) -> tuple[ManagedProcess, int]:
    port = free_port()
    command = [nats_binary(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(disk.path)]
    nats = ManagedProcess(ProcessSpec("nats", "nats", command, log))
    await nats.start()
    await wait_for_port(nats, port, WAIT_S)
    return nats, port


async def test_what_was_queued_is_kept_and_what_waited_is_queued_once_there_is_room(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    log = tmp_path / "nats.log"
    with open_disk(DISK_BYTES) as disk:
        if not disk.can_fill:
            pytest.skip("no file system may be mounted here (needs root)")
        nats, port = await start_nats(disk, log)
        watchers = [
            asyncio.create_task(supervise(nats, said.append, lambda: None)),
            asyncio.create_task(start_anew_after_full_disk(nats, disk.path, said.append)),
        ]
        settings = RuntimeSettings(nats_url=f"nats://127.0.0.1:{port}", home=disk.path / "home")
        bus = await Bus.connect(settings, "router")
        queue = WorkQueue(bus)
        await queue.ensure()
        assert await put_job(queue, "before")
        disk.fill()
        waiting = asyncio.create_task(
            queue.publish(JOBS, job("meanwhile" * 2000), msg_id="meanwhile", timeout_s=WAIT_S)
        )
        await until(FailedWrites(log).new, "a failed write")
        disk.free()
        assert await soon(waiting)
        assert await put_job(queue, "after")
        assert not await put_job(queue, "before")  # still known
        assert await queue.depth() == 3
        assert any("no room" in line for line in said)
        await bus.close()
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await nats.stop(WAIT_S)
