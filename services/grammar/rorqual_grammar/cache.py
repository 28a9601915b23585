"""Compiled grammars in memory: one compilation a key at a time, least recently used leave first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import InvalidRequest, ServingError, Unsupported

from rorqual_grammar.constraint import Constraint

REJECTION_TTL_S = 60.0
"""How long the same bad constraint is refused without compiling it again."""
_REJECTION_BYTES = 1024


@dataclass
class _Entry:
    result: bytes | ServingError
    expires_s: float | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.result) if isinstance(self.result, bytes) else _REJECTION_BYTES


@dataclass
class _Flight:
    """A compilation under way and how many requests wait for it."""

    task: asyncio.Task[bytes]
    num_waiting: int = field(default=0)


class GrammarCache:
    """Get-or-compile by content. Results and rejections are kept within `capacity_bytes`."""

    def __init__(
        self,
        compile_: Callable[[Constraint], Awaitable[bytes]],
        *,
        capacity_bytes: int,
        clock: Clock,
    ) -> None:
        self._compile = compile_
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._flights: dict[bytes, _Flight] = {}
        self.used_bytes = 0

    async def get(self, constraint: Constraint) -> tuple[bytes, bool]:
        """(compiled grammar, whether it was there already). When the last caller waiting for a
        compilation is cancelled, the compilation is too.

        Raises: what the compilation raised, for this and every other caller of the same key.
        """
        entry = self._lookup(constraint.key)
        if entry is None:
            return await self._join_flight(constraint), False
        if isinstance(entry.result, ServingError):
            raise _copy(entry.result)
        return entry.result, True

    async def _join_flight(self, constraint: Constraint) -> bytes:
        key = constraint.key
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(self._fly(constraint)))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.num_waiting -= 1
            if flight.num_waiting == 0 and not flight.task.done():
                self._land(key, flight)
                flight.task.cancel()

    def _land(self, key: bytes, flight: _Flight) -> None:
        """Later callers start anew; a flight that replaced this one stays."""
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            flight.task.exception()  # seen, even when every caller has left

    async def _fly(self, constraint: Constraint) -> bytes:
        try:
            result = await self._compile(constraint)
        except (InvalidRequest, Unsupported) as error:
            expires_s = self._clock.monotonic_s() + REJECTION_TTL_S
            self._store(constraint.key, _Entry(error, expires_s))
            raise
        self._store(constraint.key, _Entry(result))
        return result

    def _lookup(self, key: bytes) -> _Entry | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.expires_s is not None and entry.expires_s <= self._clock.monotonic_s():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return entry

    def _store(self, key: bytes, entry: _Entry) -> None:
        self._drop(key)
        self._entries[key] = entry
        self.used_bytes += entry.num_bytes
        while self.used_bytes > self._capacity_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry.num_bytes


def _copy(error: ServingError) -> ServingError:
    """A fresh instance: a raised exception collects the traceback of one caller."""
    return type(error)(error.message, error.param)  # type: ignore[call-arg,arg-type]
