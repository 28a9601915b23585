"""Stored blocks read for others: the bandwidth to the store that this instance does not need."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from rorqual_policy.prefix_fetch import ReadRate, bytes_per_s, observe_read
from rorqual_runtime import subjects
from rorqual_runtime.blockstore import BlockStoreBackend
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.errors import InvalidRequest, NoCapacity
from rorqual_runtime.service import ServiceContext
from rorqual_runtime.tensors import WritableSlot
from rorqual_runtime.waiting import uninterrupted

from rorqual_decode import convert
from rorqual_decode.load_facts import RelayFacts

MAX_READS = 2
MAX_BYTES = 32 << 20
_LEASE_S = 5.0


class BlockRelay:
    """Reads blocks into the arena and answers with a ticket; at most MAX_READS at a time."""

    def __init__(
        self, ctx: ServiceContext, store: BlockStoreBackend, fingerprint: str, block_bytes: int
    ) -> None:
        self._ctx, self._store = ctx, store
        self._fingerprint, self._block_bytes = fingerprint, block_bytes
        self._num_reads = 0
        self._queued_bytes = 0
        self._rate = ReadRate()
        self._num_blocks = 0

    async def serve(self) -> None:
        """Read for whoever asks."""
        await self._ctx.bus.serve(
            subjects.decode_read(self._ctx.instance_id),
            convert.BlockReadMessage,
            convert.BlockReadReplyMessage,
            self.on_read,
            name="read",
        )

    def facts(self) -> RelayFacts:
        """As things are."""
        rate = bytes_per_s(self._rate, time.monotonic())
        host_id = self._ctx.settings.host_id or ""
        return RelayFacts(host_id, self._queued_bytes, rate, self._num_blocks, self._store.identity)

    async def on_read(self, request: Any, _context: MessageContext) -> Any:
        """Raises: InvalidRequest, NoCapacity."""
        keys = convert.named_keys(request)
        num_bytes = len(keys) * self._block_bytes
        if request.model_fingerprint != self._fingerprint or not 0 < num_bytes <= MAX_BYTES:
            raise InvalidRequest(f"{len(keys)} blocks of this model can't be read at once")
        if self._num_reads == MAX_READS:
            raise NoCapacity(f"{MAX_READS} reads for others are under way")
        with self._ctx.tensors.allocate(num_bytes, shape=(len(keys), self._block_bytes)) as slot:
            is_read = await self._read(keys, slot)
            return convert.blocks_to_wire(slot.seal(_LEASE_S, checksum=True), is_read)

    async def _read(self, keys: list[bytes], slot: WritableSlot) -> list[bool]:
        rows = slot.array.reshape(len(keys), self._block_bytes)
        wanted: list[tuple[bytes, Any]] = list(zip(keys, rows, strict=True))
        self._num_reads += 1
        self._queued_bytes += rows.nbytes
        began_s = time.monotonic()
        try:  # the slot must not be given back under the read, so a cancellation waits for it
            is_read = await uninterrupted(
                asyncio.to_thread(self._store.get_many, self._fingerprint, wanted)
            )
        finally:
            self._num_reads -= 1
            self._queued_bytes -= rows.nbytes
        now_s = time.monotonic()
        self._rate = observe_read(self._rate, rows.nbytes, now_s - began_s, now_s)
        self._num_blocks += sum(is_read)
        return is_read
