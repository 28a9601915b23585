"""Window states of prompts and answers, kept for a while where they were made.

A window state belongs to exactly one prefix. It is kept under the key of the block that it follows,
in this process's memory, and given to whoever asks. What others keep is known from their notices:
a lost one costs a replay.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rorqual_proto.v1 import kvmeta_pb2

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Corrupt, NotFound, ServingError
from rorqual_runtime.service import ServiceContext

_FETCH_S = 1.0
_ABSENT_S = 0.05
_LEASE_S = 5.0
_MAX_NOTICES = 65_536

U8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KeptWindow:
    snapshot: U8Array
    expires_s: float


class WindowShelf:
    """Snapshots by key for keep_s, at most max_bytes of them; the oldest leave first."""

    def __init__(self, clock: Clock, *, keep_s: float, max_bytes: int) -> None:
        self._clock = clock
        self.keep_s, self.max_bytes = keep_s, max_bytes
        self._kept: OrderedDict[bytes, KeptWindow] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, snapshot: U8Array) -> bool:
        """False: larger than everything that may be kept."""
        if snapshot.nbytes > self.max_bytes:
            return False
        self._drop(key)
        self._kept[key] = KeptWindow(snapshot, self._clock.monotonic_s() + self.keep_s)
        self.num_bytes += snapshot.nbytes
        self._make_room()
        return True

    def get(self, key: bytes) -> U8Array | None:
        self._make_room()
        kept = self._kept.get(key)
        return None if kept is None else kept.snapshot

    def _make_room(self) -> None:
        """Everything is kept equally long, so what came first expires first."""
        now_s = self._clock.monotonic_s()
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if oldest.expires_s > now_s and self.num_bytes <= self.max_bytes:
                return
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.num_bytes -= kept.snapshot.nbytes


@dataclass(frozen=True, slots=True)
class Notice:
    holder_id: str
    expires_unix_s: float


class WindowExchange:
    """This instance's shelf, and its way to those of others. Lives on the event loop."""

    def __init__(
        self,
        ctx: ServiceContext,
        fingerprint: str,
        *,
        snapshot_bytes: int,
        keep_s: float,
        max_bytes: int,
    ) -> None:
        """snapshot_bytes: of each of this model's; keep_s, max_bytes: what is kept here."""
        self._ctx = ctx
        self._fingerprint = fingerprint
        self._snapshot_bytes = snapshot_bytes
        self.shelf = WindowShelf(ctx.clock, keep_s=keep_s, max_bytes=max_bytes)
        self._known: OrderedDict[bytes, Notice] = OrderedDict()

    async def serve(self) -> None:
        """Give what is kept here to whoever asks."""
        await self._ctx.bus.serve(
            subjects.window_fetch(self._ctx.instance_id),
            kvmeta_pb2.WindowRequest,
            kvmeta_pb2.WindowReply,
            self._on_fetch,
            name="window",
        )

    async def listen(self) -> None:
        """Hear what others keep."""
        await self._ctx.bus.subscribe(
            subjects.window_notices(), kvmeta_pb2.WindowNotice, self._on_notice
        )

    def keep(self, key: bytes, snapshot: U8Array) -> None:
        """Keep it here and tell the others."""
        if self.shelf.put(key, snapshot):
            self._ctx.track(self._announce(key))

    def is_known(self, key: bytes) -> bool:
        """Whether it is kept here, or somebody has said to keep it."""
        if self.shelf.get(key) is not None:
            return True
        notice = self._known.get(key)
        return notice is not None and notice.expires_unix_s > self._ctx.clock.now_unix_s()

    async def fetch(self, key: bytes) -> U8Array | None:
        """The snapshot; None when it has gone, and then it is not known any more."""
        if (own := self.shelf.get(key)) is not None:
            return own
        notice = self._known.get(key)
        if notice is None:
            return None
        try:
            return await self._fetch_from(notice.holder_id, key)
        except ServingError:
            self._known.pop(key, None)
            return None

    async def _fetch_from(self, holder_id: str, key: bytes) -> U8Array:
        reply = await self._ctx.bus.request(
            subjects.window_fetch(holder_id),
            kvmeta_pb2.WindowRequest(model_fingerprint=self._fingerprint, key=key),
            kvmeta_pb2.WindowReply,
            timeout_s=_FETCH_S,
            absent_timeout_s=_ABSENT_S,
        )
        try:
            if reply.window.size_bytes != self._snapshot_bytes:
                raise Corrupt(f"a window of {reply.window.size_bytes} bytes came")
            return await self._ctx.tensors.fetch(reply.window, timeout_s=_FETCH_S)
        finally:
            self._ctx.track(self._release(reply.window))

    async def _release(self, ticket: object) -> None:
        with contextlib.suppress(ServingError):  # its lease is short
            await self._ctx.tensors.release_remote(ticket)  # type: ignore[arg-type]

    async def _announce(self, key: bytes) -> None:
        notice = kvmeta_pb2.WindowNotice(
            model_fingerprint=self._fingerprint,
            holder_id=self._ctx.instance_id,
            key=key,
            expires_unix_s=self._ctx.clock.now_unix_s() + self.shelf.keep_s,
        )
        with contextlib.suppress(ServingError):
            await self._ctx.bus.publish(subjects.window_notices(), notice)

    async def _on_notice(self, notice: kvmeta_pb2.WindowNotice, _context: MessageContext) -> None:
        is_own = notice.holder_id == self._ctx.instance_id
        if is_own or notice.model_fingerprint != self._fingerprint:
            return
        self._known.pop(notice.key, None)
        self._known[notice.key] = Notice(notice.holder_id, notice.expires_unix_s)
        while len(self._known) > _MAX_NOTICES:
            self._known.popitem(last=False)

    async def _on_fetch(
        self, request: kvmeta_pb2.WindowRequest, _context: MessageContext
    ) -> kvmeta_pb2.WindowReply:
        """Raises: NotFound, NoCapacity."""
        snapshot = self.shelf.get(request.key)
        if snapshot is None or request.model_fingerprint != self._fingerprint:
            raise NotFound("this window is not kept here")
        ticket = await self._ctx.tensors.publish(snapshot, lease_s=_LEASE_S)
        return kvmeta_pb2.WindowReply(window=ticket)
