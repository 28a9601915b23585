"""Window states of prompts and answers, kept for a while where they were made.

A window state belongs to exactly one prefix. It is kept under the key of the block that it follows,
in this process's memory, and given to whoever asks. kvmeta hears who keeps what and tells it with
each match: a notice that is lost costs a replay.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from rorqual_proto.v1 import kvmeta_pb2

from rorqual_runtime import subjects
from rorqual_runtime.bus import MessageContext
from rorqual_runtime.clock import Clock
from rorqual_runtime.errors import Corrupt, DeadlineExceeded, NoCapacity, NotFound, ServingError
from rorqual_runtime.service import ServiceContext

_FETCH_S = 1.0
_SILENT_S = 0.9
"""A holder that says nothing for so long is taken for dead."""
_ABSENT_S = 0.05
_LEASE_S = 5.0
_MAX_KNOWN = 4096
_FREED_SHARE = 8
"""A full shelf makes room for this part of it at once: it looks at all windows for that."""

U8Array = npt.NDArray[np.uint8]


@dataclass(slots=True)
class KeptWindow:
    """A window state and what is known of it."""

    snapshot: U8Array
    is_replayed: bool
    """Made behind a bounded replay: close to exact."""
    saved_tokens: int = 0
    """Tokens that run again where it is missing."""
    used_s: float = 0.0
    """When it was made or last read."""
    num_uses: int = 0

    @property
    def num_bytes(self) -> int:
        return self.snapshot.nbytes


ChooseVictims = Callable[[Sequence[KeptWindow], float, int], list[int]]
"""(windows, now_s, num_bytes) -> indices of those that leave so that num_bytes come free."""


class WindowShelf:
    """Snapshots by key for keep_s since they were put or read, at most max_bytes of them; the least
    valuable leave first."""

    def __init__(
        self, clock: Clock, *, keep_s: float, max_bytes: int, choose_victims: ChooseVictims
    ) -> None:
        self._clock, self._choose_victims = clock, choose_victims
        self.keep_s, self.max_bytes = keep_s, max_bytes
        self._kept: OrderedDict[bytes, KeptWindow] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, window: KeptWindow) -> bool:
        """Whether it is kept. One behind a replay does not take the place of an exact one."""
        known = self.get(key)
        if known is not None and window.is_replayed and not known.is_replayed:
            return True
        if window.num_bytes > self.max_bytes:
            return False
        self._drop(key)
        window.used_s = self._clock.monotonic_s()
        self._kept[key] = window
        self.num_bytes += window.num_bytes
        self._make_room()
        return key in self._kept

    def get(self, key: bytes) -> KeptWindow | None:
        """Without reading it."""
        self._expire()
        return self._kept.get(key)

    def read(self, key: bytes) -> KeptWindow | None:
        """Its time begins anew."""
        window = self.get(key)
        if window is not None:
            window.used_s = self._clock.monotonic_s()
            window.num_uses += 1
            self._kept.move_to_end(key)
        return window

    def _expire(self) -> None:
        """All have the same time, so those first in order are the first to go."""
        oldest_s = self._clock.monotonic_s() - self.keep_s
        while self._kept:
            key, window = next(iter(self._kept.items()))
            if window.used_s > oldest_s:
                return
            self._drop(key)

    def _make_room(self) -> None:
        if self.num_bytes <= self.max_bytes:
            return
        keys, windows = list(self._kept), list(self._kept.values())
        num_bytes = self.num_bytes - self.max_bytes + self.max_bytes // _FREED_SHARE
        for index in self._choose_victims(windows, self._clock.monotonic_s(), num_bytes):
            self._drop(keys[index])

    def _drop(self, key: bytes) -> None:
        if (window := self._kept.pop(key, None)) is not None:
            self.num_bytes -= window.num_bytes


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """Who keeps a window state."""

    holder_id: str
    expires_unix_s: float
    is_replayed: bool


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
        choose_victims: ChooseVictims,
    ) -> None:
        """snapshot_bytes: of each of this model's; the rest: what is kept here."""
        self._ctx = ctx
        self._fingerprint = fingerprint
        self._snapshot_bytes = snapshot_bytes
        self.shelf = WindowShelf(
            ctx.clock, keep_s=keep_s, max_bytes=max_bytes, choose_victims=choose_victims
        )
        self._known: OrderedDict[bytes, WindowPlace] = OrderedDict()

    async def serve(self) -> None:
        """Give what is kept here to whoever asks."""
        await self._ctx.bus.serve(
            subjects.window_fetch(self._ctx.instance_id),
            kvmeta_pb2.WindowRequest,
            kvmeta_pb2.WindowReply,
            self._on_fetch,
            name="window",
        )

    def keep(self, key: bytes, window: KeptWindow) -> None:
        """Keep it here and tell kvmeta."""
        if self.shelf.put(key, window):
            self._ctx.track(self._announce(key))

    def learn(self, key: bytes, place: WindowPlace) -> None:
        """Somebody is said to keep this one."""
        if place.holder_id == self._ctx.instance_id:
            return
        self._known[key] = place
        self._known.move_to_end(key)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def is_known(self, key: bytes, *, exact_only: bool = False) -> bool:
        """Whether it is kept here, or somebody is said to keep it."""
        found: KeptWindow | WindowPlace | None = self.shelf.get(key)
        if found is None:
            found = self._known.get(key)
            if found is None or found.expires_unix_s <= self._ctx.clock.now_unix_s():
                return False
        return not (exact_only and found.is_replayed)

    async def fetch(self, key: bytes) -> KeptWindow | None:
        """The window state; None when it has gone, and then it is not known any more."""
        if (own := self.shelf.read(key)) is not None:
            self._ctx.track(self._announce(key))
            return own
        place = self._known.get(key)
        if place is None:
            return None
        began_s = self._ctx.clock.monotonic_s()
        try:
            window = await self._fetch_from(place.holder_id, key)
        except ServingError as error:
            self._known.pop(key, None)
            if _has_gone(error, self._ctx.clock.monotonic_s() - began_s):
                self._ctx.track(self._tell(key, place.holder_id, 0.0, place.is_replayed))
            return None
        if window.is_replayed and self._known.get(key) is place:
            # Who wants an exact one need not ask for it again.
            self._known[key] = replace(place, is_replayed=True)
        return window

    async def _fetch_from(self, holder_id: str, key: bytes) -> KeptWindow:
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
            snapshot = await self._ctx.tensors.fetch(reply.window, timeout_s=_FETCH_S)
        finally:
            self._ctx.track(self._release(reply.window))
        return KeptWindow(snapshot, reply.replayed)

    async def _release(self, ticket: object) -> None:
        with contextlib.suppress(ServingError):  # its lease is short
            await self._ctx.tensors.release_remote(ticket)  # type: ignore[arg-type]

    async def _announce(self, key: bytes) -> None:
        if (window := self.shelf.get(key)) is not None:
            expires_unix_s = self._ctx.clock.now_unix_s() + self.shelf.keep_s
            await self._tell(key, self._ctx.instance_id, expires_unix_s, window.is_replayed)

    async def _tell(
        self, key: bytes, holder_id: str, expires_unix_s: float, is_replayed: bool
    ) -> None:
        notice = kvmeta_pb2.WindowNotice(
            model_fingerprint=self._fingerprint,
            holder_id=holder_id,
            key=key,
            expires_unix_s=expires_unix_s,
            replayed=is_replayed,
        )
        with contextlib.suppress(ServingError):
            await self._ctx.bus.publish(subjects.window_notices(), notice)

    async def _on_fetch(
        self, request: kvmeta_pb2.WindowRequest, _context: MessageContext
    ) -> kvmeta_pb2.WindowReply:
        """Raises: NotFound, NoCapacity."""
        window = self.shelf.read(request.key)
        if window is None or request.model_fingerprint != self._fingerprint:
            raise NotFound("this window is not kept here")
        ticket = await self._ctx.tensors.publish(window.snapshot, lease_s=_LEASE_S)
        self._ctx.track(self._announce(request.key))
        return kvmeta_pb2.WindowReply(window=ticket, replayed=window.is_replayed)


def _has_gone(error: ServingError, waited_s: float) -> bool:
    """Not so one that is kept, but can't be given just now, or was asked for when the prompt's own
    time was nearly over."""
    if isinstance(error, DeadlineExceeded):
        return waited_s >= _SILENT_S
    return not isinstance(error, NoCapacity)
