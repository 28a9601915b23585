"""Texts on which an encoder must give the reference's ids before it is trusted."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rorqual_recipe.tokens.vocabulary import byte_level_bytes

PROBE_TEXTS = (
    "Hello, world!",
    "  leading,\ttabs and\n\n\nlines  ",
    "naïve café — “quotes” … ½",
    "def f(x):\n    return x ** 2  # 12345 0x1f\r\n",
    "深度求索把推理服务拆开。",
    "Ünïcödé e\u0301 \u200d\ufe0f 👩‍👩‍👧‍👦🇫🇷",
    "مرحبا שלום नमस्ते สวัสดี",
    "don't WON'T it's 1,234.56 a_b__c <|not_special|> </s> [INST]",
    "\x00\x07\u2028 \ufffd\U0010ffff",
    "a" * 300 + " " * 70 + "\n" * 9,
)
_NUM_SAMPLED_TOKENS = 2000
_TOKENS_A_TEXT = 40


def probe_texts(tokenizer: Mapping[str, Any]) -> list[str]:
    """PROBE_TEXTS and what this tokenizer's own vocabulary spells, the same at every start."""
    spellings = [str(entry["content"]) for entry in tokenizer.get("added_tokens", ())]
    around = [f"x{spelling} {spelling}\n{spelling}" for spelling in spellings]
    return [*PROBE_TEXTS, *around, *_vocabulary_texts(list(tokenizer["model"]["vocab"]))]


def _vocabulary_texts(tokens: Sequence[Any]) -> Iterator[str]:
    """Tokens in random order, as they are and with spaces between them."""
    texts = [token for token in tokens if isinstance(token, str)]
    sample = random.Random(0).sample(texts, min(len(texts), _NUM_SAMPLED_TOKENS))
    for start in range(0, len(sample), _TOKENS_A_TEXT):
        parts = [byte_level_bytes(token) for token in sample[start : start + _TOKENS_A_TEXT]]
        yield b"".join(parts).decode(errors="replace")
        yield b" ".join(parts).decode(errors="replace")
