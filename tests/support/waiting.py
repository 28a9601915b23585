"""Waits of tests: for a condition, with a bound that only a broken promise reaches.

No test may fail because the machine is busy, so nothing here is tight: a wait ends as soon as what
it waits for is true, and `WAIT_S` is what a fault costs.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

WAIT_S = 30.0
"""Bound of every wait for something that is certain to come."""
POLL_S = 0.01

T = TypeVar("T")


async def soon(awaitable: Awaitable[T], timeout_s: float = WAIT_S) -> T:
    """The result, which is certain to come. Raises: TimeoutError."""
    return await asyncio.wait_for(awaitable, timeout_s)


async def until(
    condition: Callable[[], object | Awaitable[object]],
    what: str | Callable[[], str] = "the condition",
    *,
    timeout_s: float = WAIT_S,
) -> None:
    """Return once `condition`, a function or a coroutine function, gives something true.

    Raises: AssertionError when it never does, that says `what` was waited for.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return
        assert time.monotonic() < until_s, _in_vain(what, timeout_s)
        await asyncio.sleep(POLL_S)


def until_blocking(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "the condition",
    *,
    timeout_s: float = WAIT_S,
) -> None:
    """`until` for tests without an event loop."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, _in_vain(what, timeout_s)
        time.sleep(POLL_S)


def _in_vain(what: str | Callable[[], str], timeout_s: float) -> str:
    return f"waited {timeout_s:g} s in vain for {what if isinstance(what, str) else what()}"
