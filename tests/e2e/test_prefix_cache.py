"""A repeated prompt computes only what no stored block covers, and says so."""

from __future__ import annotations

import time
from pathlib import Path

import openai

from tests.e2e.chat import GreedyChat
from tests.support.waiting import WAIT_S

_WORD = " river"


def test_a_repeated_2000_token_prompt_computes_only_its_last_partial_block(
    client: openai.OpenAI, model_dir: Path
) -> None:
    chat = GreedyChat(model_dir)
    content = "Count:" + _WORD * (2000 - len(chat.prompt_ids("Count:")))
    assert len(chat.prompt_ids(content)) == 2000
    first = chat.ask(client, content)
    assert first.cached_tokens == 0
    again = _ask_until_stored(chat, client, content)
    assert again.cached_tokens == 15 * 128
    assert again.output_ids == first.output_ids


def test_another_salt_shares_nothing(client: openai.OpenAI) -> None:
    def cached(salt: str) -> tuple[int, str]:
        """Tokens that were cached, and why no more were."""
        done = client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "Salted:" + _WORD * 400}],
            max_tokens=1,
            extra_body={"cache_salt": salt, "cache_ttl": "1h"},
        )
        assert done.usage and done.usage.prompt_tokens_details
        reason = (done.usage.model_extra or {}).get("cache_miss_reason", "")
        return done.usage.prompt_tokens_details.cached_tokens or 0, reason

    assert cached("one") == (0, "never_stored")
    end_s = time.monotonic() + WAIT_S
    while cached("one") != (3 * 128, ""):
        assert time.monotonic() < end_s, "the blocks were never stored"
    assert cached("two") == (0, "never_stored")


def _ask_until_stored(chat: GreedyChat, client: openai.OpenAI, content: str):  # type: ignore[no-untyped-def]
    """Blocks are written behind the answer: ask again for a moment until all are there."""
    end_s = time.monotonic() + WAIT_S
    while True:
        answer = chat.ask(client, content)
        if answer.cached_tokens == 15 * 128 or time.monotonic() > end_s:
            return answer
