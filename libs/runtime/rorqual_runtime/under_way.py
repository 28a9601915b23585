"""Requests under way, so that a cancellation ends their waits and a drain awaits them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rorqual_runtime.cancelled import CancelledIds
from rorqual_runtime.errors import Cancelled

T = TypeVar("T")


class UnderWay:
    """Tasks by request id, several of one request too; owned by one event loop."""

    def __init__(self, cancelled: CancelledIds) -> None:
        self._cancelled = cancelled
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, request_id: str, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work.

        Raises: Cancelled when the request is cancelled, before or meanwhile; else whatever the
            work raises.
        """
        if request_id in self._cancelled:
            work.close()
            raise Cancelled()
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = request_id
        self._idle.clear()
        try:
            return await task
        except asyncio.CancelledError:
            if request_id in self._cancelled:
                raise Cancelled() from None
            raise
        finally:
            del self._tasks[task]
            if not self._tasks:
                self._idle.set()

    def cancel(self, request_id: str) -> int:
        """Remember the id, and end what is under way for it: how many tasks."""
        self._cancelled.add(request_id)
        tasks = [task for task, owner in self._tasks.items() if owner == request_id]
        return sum(task.cancel() for task in tasks)

    async def wait_idle(self) -> None:
        """Return once nothing is under way."""
        await self._idle.wait()
