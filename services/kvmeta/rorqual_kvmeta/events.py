"""What instances tell each other: every change once, numbered, so that a loss shows.

A publisher counts its messages from its start; a short message without content a second tells how
far it has come. A number left out, another incarnation, or silence of a publisher that was heard
before means that something may be missing here: then Redis is read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rorqual_runtime import subjects
from rorqual_runtime.errors import ServingError
from rorqual_runtime.service import ServiceContext

from rorqual_kvmeta.convert import BlockEvents, ClearBlocksRequest, events_to_wire
from rorqual_kvmeta.records import Records

MAX_RECORDS = 800
"""Records in one message: 45 kB."""

Contents = Iterable[tuple[bytes, bytes]]
"""Content key and key of first blocks."""


@dataclass(slots=True)
class _Heard:
    incarnation: int
    seq: int
    at_s: float


class PeerProgress:
    """How far each publisher has been followed."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def observe(self, publisher_id: str, incarnation: int, seq: int, now_s: float) -> bool:
        """Take note of a message. False: something before it was missed.

        The first message ever of a publisher misses nothing: what came before was in Redis before
        it was read at the start.
        """
        before = self._heard.get(publisher_id)
        self._heard[publisher_id] = _Heard(incarnation, seq, now_s)
        if before is None:
            return True
        return before.incarnation == incarnation and seq == before.seq + 1

    def drop_silent(self, oldest_s: float) -> list[str]:
        """Publishers not heard of since then; they count as unknown from now on."""
        silent = [name for name, heard in self._heard.items() if heard.at_s < oldest_s]
        for name in silent:
            del self._heard[name]
        return silent


class EventPublisher:
    """Tells all instances what this one has changed. What is not heard shows as a gap."""

    def __init__(self, ctx: ServiceContext, heartbeat_s: float) -> None:
        self._ctx = ctx
        self._heartbeat_s = heartbeat_s
        self._seq = 0
        self._sending = asyncio.Lock()

    async def publish(self, records: Records, contents: Contents = ()) -> None:
        """Records as they are from now on; contents: first blocks among them."""
        packed = b"".join(content + first for content, first in contents)
        parts = list(_parts(records)) or [b""]
        for index, part in enumerate(parts):
            await self._send(BlockEvents(records=part, contents=packed if index == 0 else b""))

    async def publish_clear(self, clear: ClearBlocksRequest) -> None:
        """Everything that this request names is gone."""
        await self._send(BlockEvents(clear=clear))

    async def beat_forever(self) -> None:
        """Tell now and then how far it has come."""
        while True:
            await self._send(BlockEvents())
            await asyncio.sleep(self._heartbeat_s)

    async def _send(self, message: BlockEvents) -> None:
        async with self._sending:  # numbers leave in order
            self._seq += 1
            wire = events_to_wire(message, self._ctx.instance_id, self._ctx.incarnation, self._seq)
            if not self._ctx.bus.is_connected:
                return
            try:
                await self._ctx.bus.publish(subjects.kvmeta_events(), wire)
            except ServingError:
                return


def _parts(records: Records) -> Iterator[bytes]:
    for start in range(0, len(records), MAX_RECORDS):
        yield records[start : start + MAX_RECORDS].tobytes()
