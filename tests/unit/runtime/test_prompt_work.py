"""Where work over a prompt runs."""

from __future__ import annotations

import threading

import pytest
from rorqual_runtime.prompt_work import INLINE_TOKENS, over_prompt


async def test_only_long_prompts_leave_the_event_loop() -> None:
    here = threading.get_ident()
    assert await over_prompt(INLINE_TOKENS, threading.get_ident) == here
    assert await over_prompt(INLINE_TOKENS + 1, threading.get_ident) != here


@pytest.mark.parametrize("num_tokens", [1, INLINE_TOKENS + 1])
async def test_errors_come_through(num_tokens: int) -> None:
    def fail() -> None:
        raise ValueError("bad block")

    with pytest.raises(ValueError, match="bad block"):
        await over_prompt(num_tokens, fail)
