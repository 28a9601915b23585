"""Waits that a cancellation may not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def uninterrupted(awaitable: Awaitable[T]) -> T:
    """Wait to the end even if this task is cancelled meanwhile; the cancellation follows then.

    For work in threads that still touches memory which the caller is about to give back.
    """
    future = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as err:
            if future.cancelled():
                raise
            cancelled = err
        except BaseException:
            if cancelled is None:
                raise
    if cancelled is not None:
        raise cancelled
    return future.result()
