"""Prompts of known size for benchmarks; all differ from their first words on (no cache hits)."""

from __future__ import annotations

import random

_WORDS = (
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "letter",
    "bridge",
    "morning",
    "silver",
    "engine",
    "harbor",
    "candle",
    "forest",
    "signal",
    "copper",
    "winter",
    "planet",
    "basket",
    "mirror",
    "thunder",
    "valley",
    "ribbon",
    "anchor",
    "meadow",
)


def distinct_prompts(num_prompts: int, *, num_words: int, seed: int) -> list[str]:
    """num_prompts different texts of num_words words (about one token a word)."""
    rng = random.Random(seed)
    return [
        f"Story {rng.randrange(10**6)}: " + " ".join(rng.choice(_WORDS) for _ in range(num_words))
        for _ in range(num_prompts)
    ]
