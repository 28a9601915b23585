"""Work over all tokens of a prompt, such as hashing, that may be too long for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

INLINE_TOKENS = 131_072
"""Hashing more holds up the loop for over a millisecond."""

T = TypeVar("T")


async def over_prompt(num_tokens: int, work: Callable[[], T]) -> T:
    """The result of work over so many tokens: made at once, for a longer prompt in a thread."""
    return work() if num_tokens <= INLINE_TOKENS else await asyncio.to_thread(work)
