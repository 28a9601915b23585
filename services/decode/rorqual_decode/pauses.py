"""Generations that step aside while KV pages are short, with all they have computed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rorqual_engine.errors import NoPages
from rorqual_policy.preemption import PageUser, can_resume, choose_to_pause
from rorqual_runtime.logs import get_logger
from rorqual_runtime.waiting import uninterrupted

from rorqual_decode.carried_kv import KvMemory
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import Entry
from rorqual_decode.growth import PageGrowth, age
from rorqual_decode.load_facts import PauseFacts
from rorqual_decode.page_hold import PageHold
from rorqual_decode.running import Running
from rorqual_decode.taking_out import take_out

_LOOK_S = 0.05

log = get_logger(__name__)


@dataclass(slots=True)
class PauseTotals:
    """Since the start."""

    num_paused: int = 0
    num_resumed: int = 0


class Pauses:
    """Copies the youngest generations into host memory when others need their pages, and back when
    there is room. Lives on the event loop.

    Host memory for them is bounded by max_bytes. Beyond it those that find no pages wait for others
    to end; where nobody can go on any more, the youngest is given up, for its reader to have it
    generated elsewhere.
    """

    def __init__(
        self,
        engine: DecodeEngine,
        growth: PageGrowth,
        memory: KvMemory,
        *,
        entries: Callable[[], Iterable[Entry]],
        give_up: Callable[[Entry], None],
        max_bytes: int,
    ) -> None:
        self._engine, self._growth, self._memory = engine, growth, memory
        self._entries = entries
        self._give_up = give_up
        self._max_bytes = max_bytes
        self.totals = PauseTotals()

    def facts(self) -> PauseFacts:
        """As things are."""
        return PauseFacts(self.num_paused, self.totals.num_paused)

    @property
    def num_paused(self) -> int:
        """Generations that wait in host memory."""
        return len(self._paused())

    async def run(self) -> None:
        """Look after the pages for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._engine.waiting_for_pages:
                await self.relieve()
            elif self._paused():
                await self.resume_oldest()

    async def relieve(self) -> None:
        """Have the youngest step aside, so that the others find the pages they wait for."""
        waiting = set(map(id, self._engine.waiting_for_pages))
        running = [
            (entry, entry.sequence)
            for entry in self._entries()
            if entry.sequence is not None and entry.departure is None
        ]
        running.sort(key=lambda pair: age(pair[1]))
        users = [
            PageUser(len(s.pages), self._growth.num_wanted(s) if id(s) in waiting else 0)
            for _, s in running
        ]
        do_all_wait = all(id(sequence) in waiting for _, sequence in running)
        for place in choose_to_pause(users, self._memory.cache.num_free):
            entry, sequence = running[place]
            if self._has_memory(len(sequence.pages)):
                await self._pause(entry)
                do_all_wait = False  # what others find now is not known
            elif do_all_wait:
                self._give_up(entry)
                return

    async def resume_oldest(self) -> None:
        """The oldest one that is paused goes on, if there is room for it."""
        entry = min(self._paused(), key=lambda entry: age(_paused_sequence(entry)))
        sequence = _paused_sequence(entry)
        num_held = len(sequence.pages)
        num_ahead = self._growth.num_ahead(sequence)
        if not can_resume(num_held, num_ahead, self._memory.cache.num_free):
            return
        await self._resume(entry, num_held)

    async def _pause(self, entry: Entry) -> None:
        sequence = await take_out(self._engine, entry)
        if sequence is None:
            return
        try:
            copying = asyncio.to_thread(self._memory.copy_out, sequence)
            kv = await uninterrupted(copying)
        finally:
            sequence.hold.release()
        if entry.is_active:
            entry.paused = sequence, kv
            self.totals.num_paused += 1
            log.info("a generation steps aside", extra={"request_id": entry.key.request_id})

    async def _resume(self, entry: Entry, num_pages: int) -> None:
        assert entry.paused is not None
        sequence, kv = entry.paused
        try:
            lease = self._memory.cache.allocate(num_pages)
        except NoPages:
            return
        hold = PageHold(lease)
        entry.paused = None
        try:
            copying = asyncio.to_thread(self._memory.copy_in, kv, lease.pages, lease.window)
            await uninterrupted(copying)
        except BaseException:
            hold.release()
            raise
        if not entry.is_active:
            hold.release()
            return
        sequence.settle(lease.pages, hold, lease.window)
        entry.sequence = sequence
        self._engine.add(sequence)
        self.totals.num_resumed += 1

    def _paused(self) -> list[Entry]:
        return [entry for entry in self._entries() if entry.paused is not None]

    def _has_memory(self, num_pages: int) -> bool:
        held = sum(entry.num_host_bytes for entry in self._entries())
        return held + num_pages * self._memory.cache.layout.page_bytes <= self._max_bytes


def _paused_sequence(entry: Entry) -> Running:
    assert entry.paused is not None
    return entry.paused[0]
