"""Generations that leave this instance while they run, or stay when nobody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from rorqual_policy.runs import run_after_move
from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import get_logger

from rorqual_decode.carried_kv import CarriedKv, HostKv, KvMemory
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import Entry
from rorqual_decode.mover import Mover, state_of
from rorqual_decode.running import Running
from rorqual_decode.taking_out import take_out

_HAND_OVER_S = 4.0
"""For as long the client waits at most before the generation goes on here."""

_MAX_MOVES = 4
_PAUSE_S = 0.3

log = get_logger(__name__)


class Departures:
    """Takes sequences out of the engine and hands them over. Lives on the event loop."""

    def __init__(self, engine: DecodeEngine, mover: Mover, memory: KvMemory) -> None:
        self._engine = engine
        self._mover = mover
        self._memory = memory
        self.num_moved = 0
        """Since the start."""

    async def move_all(
        self,
        to_move: Callable[[], Sequence[Entry]],
        on_moved: Callable[[Entry], None],
        on_broken: Callable[[Entry], None],
    ) -> None:
        """Return once nothing is left to move; a few at a time, for each is stopped while it is
        copied. Who finds no room asks again.

        on_broken: it can't be moved, nor go on here (our bug); the others can.
        """
        slots = asyncio.Semaphore(_MAX_MOVES)

        async def try_one(entry: Entry) -> None:
            async with slots:
                try:
                    has_moved = await self._try(entry)
                except Exception:
                    log.exception("a move broke", extra={"request_id": entry.key.request_id})
                    if entry.is_active:
                        on_broken(entry)
                    return
                if has_moved and entry.is_active:
                    on_moved(entry)

        while entries := to_move():
            await asyncio.gather(*map(try_one, entries))
            if to_move():
                await asyncio.sleep(_PAUSE_S)

    async def _try(self, entry: Entry) -> bool:
        entry.departure = asyncio.get_running_loop().create_task(self.move(entry))
        try:
            return await entry.departure
        except ServingError as err:
            log.info("no other instance has room: %s", err.message)
            return False
        except asyncio.CancelledError:
            if entry.is_active:
                raise  # the time is up; else its client has left
            return False
        finally:
            entry.departure = None

    async def move(self, entry: Entry) -> bool:
        """True once another instance has it and its memory here is free; else it has ended, or it
        stays. A cancellation frees the memory, too.

        Raises: ServingError when nobody has room; nothing has happened then.
        """
        # It is placed while it still runs: no client waits for an answer that nobody has room for.
        num_tokens = len(entry.prompt_ids) + len(entry.stream.token_ids)
        first_id = await self._mover.place(entry.stream.spec, num_tokens)
        if entry.paused is not None:
            return await self._move_paused(entry, *entry.paused, first_id)
        sequence = await take_out(self._engine, entry)
        if sequence is None:
            return False
        try:
            has_moved = await self._hand_over(entry, sequence, self._memory.of(sequence), first_id)
        except BaseException:
            sequence.hold.release()
            raise
        if has_moved:
            sequence.hold.release()
        else:
            entry.sequence = sequence
            self._engine.add(sequence)
        return has_moved

    async def _move_paused(
        self, entry: Entry, sequence: Running, kv: HostKv, first_id: str
    ) -> bool:
        entry.paused, entry.moving = None, kv  # it does not go on meanwhile
        try:
            has_moved = await self._hand_over(entry, sequence, kv, first_id)
        finally:
            entry.moving = None
        if not has_moved:
            entry.paused = sequence, kv
        return has_moved

    async def _hand_over(
        self, entry: Entry, sequence: Running, kv: CarriedKv, first_id: str
    ) -> bool:
        state = state_of(sequence, entry.origin, entry.prompt_ids, entry.stream.token_ids)
        fleet = self._mover.fleet(state)
        facts = {"request_id": entry.key.request_id, "choice": entry.key.choice_index}
        try:
            new_id = await self._mover.hand_over(kv, fleet, first_id, _HAND_OVER_S)
        except ServingError as err:
            log.warning("a generation stays here: %s", err.message, extra=facts)
            _renumber(entry, sequence, run_after_move(fleet.run))
            return False
        log.info("a generation has moved", extra={**facts, "to": new_id})
        self.num_moved += 1
        return True


def _renumber(entry: Entry, sequence: Running, run: int) -> None:
    """Above the runs that were offered: somebody may have taken one, unable to say so."""
    spec = replace(entry.stream.spec, key=entry.key._replace(run=run))
    sequence.spec = entry.stream.spec = spec
