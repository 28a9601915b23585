"""What a store lost, told to kvmeta: it should promise those blocks to nobody."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Sequence

from rorqual_proto.v1 import kvmeta_pb2

from rorqual_runtime import subjects
from rorqual_runtime.blockstore.backend import ForgetReason, ForgottenBlock
from rorqual_runtime.blockstore.record import is_named
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import ServingError

MAX_KEYS = 1024
"""In one message: 18 KiB."""
MAX_BACKLOG = 65_536
MAX_DAMAGED = 4096
ALL_REASONS: Collection[ForgetReason] = ("evicted", "expired", "corrupt")


class ForgetNotices:
    """Tells kvmeta in batches. At most MAX_BACKLOG blocks wait, of more the first are dropped: a
    reader that misses a block says so again."""

    def __init__(self, bus: Bus, reasons: Collection[ForgetReason] = ALL_REASONS) -> None:
        """Blocks that went for another reason are not told."""
        self._bus = bus
        self._reasons = reasons
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ForgottenBlock] = deque(maxlen=MAX_BACKLOG)
        self._is_due = asyncio.Event()

    def add(self, blocks: Sequence[ForgottenBlock]) -> None:
        """An `OnForgotten`: from any thread, without waiting."""
        told = [b for b in blocks if is_named(b.fingerprint) and b.reason in self._reasons]
        if told and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._add, told)

    async def run(self) -> None:
        """Tell what comes, for ever. While the bus is away, notices are lost."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            blocks = list(self._waiting)
            self._waiting.clear()
            for message in to_wire(blocks):
                try:
                    await self._bus.publish(subjects.kvmeta_forget(), message)
                except ServingError:
                    break

    def _add(self, blocks: Sequence[ForgottenBlock]) -> None:
        self._waiting.extend(blocks)
        self._is_due.set()


class DamagedBlocks:
    """Remembers the last MAX_DAMAGED blocks that this process found damaged. Safe for threads."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, blocks: Sequence[ForgottenBlock]) -> None:
        """An `OnForgotten`."""
        with self._lock:
            self._keys.update((block.key, None) for block in blocks if block.reason == "corrupt")
            while len(self._keys) > MAX_DAMAGED:
                self._keys.popitem(last=False)

    def take(self, key: bytes) -> bool:
        """Whether it is one of them: said once."""
        with self._lock:
            is_known = key in self._keys
            self._keys.pop(key, None)
            return is_known


def to_wire(blocks: Sequence[ForgottenBlock]) -> list[kvmeta_pb2.ForgetBlocksRequest]:
    """One message for each model, reason and MAX_KEYS blocks."""
    keys: dict[tuple[str, ForgetReason], list[bytes]] = defaultdict(list)
    for block in blocks:
        keys[block.fingerprint, block.reason].append(block.key)
    return [
        kvmeta_pb2.ForgetBlocksRequest(
            model_fingerprint=fingerprint, keys=found[at : at + MAX_KEYS], reason=reason
        )
        for (fingerprint, reason), found in keys.items()
        for at in range(0, len(found), MAX_KEYS)
    ]
