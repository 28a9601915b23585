"""Decode instances of other hosts that read stored blocks for this one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rorqual_policy.prefix_fetch import FetchSource, ReadRate, bytes_per_s, observe_read
from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.errors import Corrupt, ServingError
from rorqual_runtime.service import ServiceContext

from rorqual_prefill import convert

_READ_S = 5.0
_ABSENT_S = 0.05
_SILENT_S = 2.0
_REST_S = 30.0
"""One that failed, or had none of the blocks, is left alone for so long."""
_UNTRIED_SHARE = 0.5
"""Of the own store's rate: what a relay that was not tried yet is expected to do, because what it
reads comes over the network as well."""
_MAX_RELAYS = 256


@dataclass(slots=True)
class _Relay:
    facts: convert.RelayFacts
    heard_s: float
    rate: ReadRate = field(default_factory=ReadRate)
    rests_until_s: float = 0.0


class Relays:
    """What they say, what was measured of them, and the way to ask. Lives on the event loop."""

    def __init__(
        self,
        ctx: ServiceContext,
        fingerprint: str,
        block_bytes: int,
        own_store_id: Callable[[], str],
    ) -> None:
        """own_store_id: of the store that is read here; others are of no use."""
        self._own_store_id = own_store_id
        self._ctx, self._fingerprint, self._block_bytes = ctx, fingerprint, block_bytes
        self._relays: dict[str, _Relay] = {}

    async def listen(self) -> None:
        """Hear what decode instances report."""
        await self._ctx.bus.subscribe_loads(subjects.loads_of("decode"), self.on_load)

    async def on_load(self, report: Any, _context: MessageContext) -> None:
        """Remember those of the same model and store on another host."""
        facts = convert.relay_from_wire(report, self._fingerprint)
        is_here = facts is not None and facts.host_id == self._ctx.settings.host_id
        if facts is None or is_here or facts.store_id != self._own_store_id():
            self._relays.pop(report.instance_id, None)
            return
        now_s = self._ctx.clock.monotonic_s()
        known = self._relays.get(report.instance_id)
        if known is not None:
            known.facts, known.heard_s = facts, now_s
        elif len(self._relays) < _MAX_RELAYS:
            self._relays[report.instance_id] = _Relay(facts, now_s)

    def sources(self, own_bytes_per_s: float) -> list[FetchSource]:
        """Who could be asked now."""
        now_s = self._ctx.clock.monotonic_s()
        self._relays = {
            name: relay
            for name, relay in self._relays.items()
            if now_s - relay.heard_s <= _SILENT_S or relay.rests_until_s > now_s
        }
        return [
            FetchSource(
                name,
                bytes_per_s(relay.rate, now_s)
                or relay.facts.bytes_per_s * _UNTRIED_SHARE
                or own_bytes_per_s * _UNTRIED_SHARE,
                relay.facts.queued_bytes,
            )
            for name, relay in sorted(self._relays.items())
            if relay.rests_until_s <= now_s
        ]

    async def read(self, name: str, wanted: Sequence[tuple[bytes, np.ndarray]]) -> list[bool]:
        """Fill the arrays with the blocks of these keys; which of them could be had."""
        clock = self._ctx.clock
        began_s = clock.monotonic_s()
        try:
            is_read = await self._read(name, wanted)
        except ServingError:
            is_read = [False] * len(wanted)
        now_s = clock.monotonic_s()
        if (relay := self._relays.get(name)) is not None:
            if any(is_read):
                num_bytes = sum(is_read) * self._block_bytes
                relay.rate = observe_read(relay.rate, num_bytes, now_s - began_s, now_s)
            else:
                relay.rests_until_s = now_s + _REST_S
        return is_read

    async def _read(self, name: str, wanted: Sequence[tuple[bytes, np.ndarray]]) -> list[bool]:
        num_bytes = len(wanted) * self._block_bytes
        reply = await self._ctx.bus.request(
            subjects.decode_read(name),
            convert.block_read_to_wire(self._fingerprint, [key for key, _ in wanted]),
            convert.BlockReadReplyMessage,
            timeout_s=_READ_S,
            absent_timeout_s=_ABSENT_S,
        )
        try:
            is_read = convert.read_from_wire(reply)
            if reply.blocks.size_bytes != num_bytes or len(is_read) != len(wanted):
                raise Corrupt(f"{reply.blocks.size_bytes} bytes came for {num_bytes}")
            if not any(is_read):
                return is_read
            blocks = await self._ctx.tensors.fetch(reply.blocks, timeout_s=_READ_S)
        finally:
            self._ctx.track(self._release(reply.blocks))
        rows = blocks.reshape(len(wanted), self._block_bytes)
        await asyncio.to_thread(_scatter, rows, [array for _, array in wanted], is_read)
        return is_read

    async def _release(self, ticket: Any) -> None:
        with contextlib.suppress(ServingError):  # its lease is short
            await self._ctx.tensors.release_remote(ticket)


def _scatter(rows: np.ndarray, arrays: Sequence[np.ndarray], is_read: Sequence[bool]) -> None:
    for row, array, ok in zip(rows, arrays, is_read, strict=True):
        if ok:
            np.copyto(array, row)
