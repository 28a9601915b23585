"""Greedy answers as token ids, the way a client can see them: through logprobs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import openai
from transformers import AutoTokenizer

MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Answer:
    """One answer."""

    prompt_ids: list[int]
    output_ids: list[int]
    cached_tokens: int
    finish_reason: str


class GreedyChat:
    """Asks a fleet greedily and reads back exact token ids."""

    def __init__(self, model_dir: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self._id_by_bytes = _ids_by_bytes(model_dir)

    def prompt_ids(self, content: str) -> list[int]:
        """What the model's own chat template makes of one user message."""
        message = [{"role": "user", "content": content}]
        ids = self._tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_dict=False
        )
        return list(ids)

    def ask(self, client: openai.OpenAI, content: str, *, max_tokens: int = 24) -> Answer:
        """One greedy answer. An end-of-sequence token is not part of output_ids."""
        done = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=max_tokens,
            logprobs=True,
        )
        choice = done.choices[0]
        assert choice.logprobs is not None and done.usage is not None
        prompt_ids = self.prompt_ids(content)
        assert done.usage.prompt_tokens == len(prompt_ids)
        details = done.usage.prompt_tokens_details
        return Answer(
            prompt_ids,
            [self._id_by_bytes[bytes(t.bytes or [])] for t in choice.logprobs.content or []],
            (details.cached_tokens or 0) if details else 0,
            choice.finish_reason,
        )


def _ids_by_bytes(model_dir: Path) -> dict[bytes, int]:
    """Byte-level vocabulary, inverted. Source: GPT-2's byte-to-character table."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(256 + i): b for i, b in enumerate(others)})
    raw = json.loads((model_dir / "tokenizer.json").read_text())
    found = {bytes(byte_of[c] for c in token): i for token, i in raw["model"]["vocab"].items()
             if all(c in byte_of for c in token)}  # fmt: skip
    for added in raw["added_tokens"]:
        found[added["content"].encode()] = added["id"]
    return found
