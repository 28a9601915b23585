"""Pulling jobs while there is room for them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from rorqual_policy.chunking import can_pull
from rorqual_runtime.leases import LeasedJob

from rorqual_prefill.service import PrefillService

_RECHECK_S = 0.25
_HEAD_START_S = 0.001
"""A job reaches the engine before the next one is asked for: asking takes 0.2 ms of the event
loop, as long as that whole way."""


class JobSource(Protocol):
    """The queue of one bucket."""

    async def pull(self, max_jobs: int, timeout_s: float) -> list[LeasedJob]: ...


async def pull_while_there_is_room(
    source: JobSource, service: PrefillService, *, wait_s: float
) -> None:
    """Take one job at a time off this queue for as long as the service is not draining.

    A job is left on the queue, for whoever has room, until this instance can start it.
    """
    while not service.is_draining:
        if can_pull(service.room()).num_jobs == 0:
            await _until_room_changes(service)
            continue
        for leased in await source.pull(1, wait_s):
            service.start(leased)
            await asyncio.sleep(_HEAD_START_S)


async def _until_room_changes(service: PrefillService) -> None:
    service.room_changed.clear()
    try:
        await asyncio.wait_for(service.room_changed.wait(), _RECHECK_S)
    except TimeoutError:
        return
