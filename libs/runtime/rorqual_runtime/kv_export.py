"""Computed KV on its way out: the pages' bytes in the tensor arena, filled while others compute."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rorqual_runtime.errors import ContextTooLong, NoCapacity, QueueTimeout
from rorqual_runtime.tensors import TensorPlane, WritableSlot

LEASE_S = 30.0
_FIRST_PAUSE_S = 0.01
_INLINE_BYTES = 4 << 20
_MAX_PAUSE_S = 0.2

T = TypeVar("T")


class KvExport:
    """Arena memory for the pages of one prompt, and every ticket of its handover.

    copy_page and put_page may run in any one thread at a time; tickets are made and renewed on the
    event loop.
    """

    def __init__(
        self,
        tensors: TensorPlane,
        slot: WritableSlot,
        pages: Sequence[int],
        read_page: Callable[[int], np.ndarray],
        page_bytes: int,
        window: WritableSlot | None = None,
    ) -> None:
        """window: for the window state behind the prompt."""
        self._window = window
        self._tensors = tensors
        self._slot = slot
        self._pages = pages
        self._read_page = read_page
        self._page_bytes = page_bytes
        self._tickets: list[Any] = []

    def copy_page(self, index: int) -> None:
        """Copy the prompt's page `index`, which is final now."""
        self.put_page(index, self._read_page(self._pages[index]))

    def put_page(self, index: int, data: np.ndarray) -> None:
        """The same for a page whose bytes are at hand. data: uint8 [page_bytes]."""
        start = index * self._page_bytes
        np.copyto(self._slot.array[start : start + self._page_bytes], data)

    def seal(self) -> Any:
        """The ticket of all pages, uint8 [pages, page_bytes]. Every page has been copied."""
        return self._keep(self._slot.seal(lease_s=LEASE_S))

    def publish_window(self, snapshot: np.ndarray) -> Any:
        """The ticket of the window state behind the prompt, uint8 [1, bytes]."""
        assert self._window is not None, "an export without a window"
        np.copyto(self._window.array, snapshot)
        return self._keep(self._window.seal(lease_s=LEASE_S))

    async def publish(self, array: np.ndarray) -> Any:
        """A ticket for another array of the same handover."""
        return self._keep(
            await self._tensors.publish(
                array, dtype=str(array.dtype), shape=array.shape, lease_s=LEASE_S
            )
        )

    def adopt(self, ticket: Any) -> None:
        """Renew and release this ticket together with the others."""
        self._keep(ticket)

    def keep_alive(self) -> None:
        """Give every ticket a full lease again."""
        for ticket in self._tickets:
            self._tensors.renew(ticket, LEASE_S)

    def release(self) -> None:
        """Void every ticket and free the memory; a reader still copying finds its ticket stale."""
        for ticket in self._tickets:
            self._tensors.release(ticket)
        self._tickets.clear()
        self._slot.discard()

    def _keep(self, ticket: Any) -> Any:
        self._tickets.append(ticket)
        return ticket


@asynccontextmanager
async def open_export(
    tensors: TensorPlane,
    pages: Sequence[int],
    *,
    read_page: Callable[[int], np.ndarray],
    page_bytes: int,
    window_bytes: int = 0,
    capacity_bytes: int,
    timeout_s: float,
) -> AsyncIterator[KvExport]:
    """Arena memory for these pages for the duration of the block, waited for while it is full.

    window_bytes: for a window state besides; 0 = none. It is small, so whoever waits for pages may
    hold its own.
    Raises: ContextTooLong when the arena could never hold them; QueueTimeout.
    """
    num_bytes = len(pages) * page_bytes
    if num_bytes + window_bytes > capacity_bytes:
        raise ContextTooLong(len(pages) * 128, capacity_bytes // page_bytes * 128)
    with ExitStack() as stack:
        window = None
        if window_bytes:
            window = await _allocate(tensors, (1, window_bytes), timeout_s)
            stack.callback(window.discard)
        slot = await _allocate(tensors, (len(pages), page_bytes), timeout_s)
        export = KvExport(tensors, slot, pages, read_page, page_bytes, window)
        stack.callback(export.release)
        yield export


async def _allocate(tensors: TensorPlane, shape: tuple[int, int], timeout_s: float) -> WritableSlot:
    return await once_there_is_room(lambda: _allocate_now(tensors, shape), timeout_s)


async def once_there_is_room(put: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """What `put` gives, as soon as the arena has the memory for it.

    Raises: QueueTimeout; what `put` raises except NoCapacity.
    """
    pause_s = _FIRST_PAUSE_S
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await put()
                except NoCapacity:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    except TimeoutError:
        raise QueueTimeout(f"the tensor arena stayed full for {timeout_s:.1f} s") from None


async def _allocate_now(tensors: TensorPlane, shape: tuple[int, int]) -> WritableSlot:
    """Large slots in a thread: the kernel clears their memory when it is used for the first time.

    Raises: NoCapacity. A cancellation leaves nothing allocated.
    """
    num_bytes = shape[0] * shape[1]
    allocate = partial(tensors.allocate, num_bytes, dtype="uint8", shape=shape)
    if num_bytes <= _INLINE_BYTES:
        return allocate()
    allocating = asyncio.ensure_future(asyncio.to_thread(allocate))
    try:
        return await asyncio.shield(allocating)
    except asyncio.CancelledError:
        allocating.add_done_callback(_discard_late)
        raise


def _discard_late(allocating: asyncio.Future[WritableSlot]) -> None:
    if not allocating.cancelled() and allocating.exception() is None:
        allocating.result().discard()
