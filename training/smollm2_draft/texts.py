"""The model's own answers, written by our engine and kept as token ids, a file of some hundred
conversations after the other. What is written already is never written again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rorqual_engine.runner import BareEngine, GenerationParams
from tokenizers import Tokenizer

from training.smollm2_draft.questions import (
    ASKED_BY_MODEL,
    conversation,
    opening,
    prepared_question,
)

SHARD_CONVERSATIONS = 384
ANSWER_TOKENS = 256
_QUESTION_TOKENS = 48
_TEMPERATURES = (0.0, 0.0, 0.0, 0.2, 0.7, 1.0)
"""One of them an answer: how the model is mostly asked, and some that wander."""


@dataclass(frozen=True)
class Conversation:
    """Token ids, and where the answer begins."""

    token_ids: np.ndarray
    """int64 [n]"""
    answer_start: int


def write_texts(
    directory: Path, engine: BareEngine, tokenizer: Tokenizer, num_shards: int
) -> Iterator[tuple[int, int]]:
    """Yields (shard, tokens of its answers) for every shard that was not there yet."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(num_shards):
        path = directory / f"{number:04d}.npz"
        if not path.exists():
            yield number, _write_shard(path, engine, tokenizer, random.Random(number))


def _write_shard(path: Path, engine: BareEngine, tokenizer: Tokenizer, rng: random.Random) -> int:
    questions = _questions(engine, tokenizer, rng)
    prompts = [tokenizer.encode(conversation(question)).ids for question in questions]
    params = [
        GenerationParams(ANSWER_TOKENS, rng.choice(_TEMPERATURES), seed=rng.getrandbits(32))
        for _ in prompts
    ]
    answers = engine.generate(prompts, params)
    both = [np.array(p + a, np.uint16) for p, a in zip(prompts, answers, strict=True)]
    partial = path.with_suffix(".partial.npz")
    np.savez(
        partial,
        ids=np.concatenate(both),
        lengths=np.array([len(ids) for ids in both]),
        answer_starts=np.array([len(prompt) for prompt in prompts]),
    )
    partial.rename(path)
    return sum(map(len, answers))


def _questions(engine: BareEngine, tokenizer: Tokenizer, rng: random.Random) -> list[str]:
    """Those that the model asks are cut at their first line."""
    num_asked = round(SHARD_CONVERSATIONS * ASKED_BY_MODEL)
    prompts = [tokenizer.encode(opening()).ids] * num_asked
    params = [
        GenerationParams(_QUESTION_TOKENS, 1.0, top_p=0.95, seed=rng.getrandbits(32))
        for _ in prompts
    ]
    written = [tokenizer.decode(ids).strip() for ids in engine.generate(prompts, params)]
    asked = [text.splitlines()[0] for text in written if text]
    prepared = [prepared_question(rng) for _ in range(SHARD_CONVERSATIONS - len(asked))]
    return asked + prepared


def read_texts(paths: Sequence[Path]) -> list[Conversation]:
    """In the order of the files."""
    found = []
    for path in paths:
        with np.load(path) as shard:
            ends = np.cumsum(shard["lengths"])
            parts = np.split(shard["ids"].astype(np.int64), ends[:-1])
            starts = shard["answer_starts"].tolist()
        found += [Conversation(ids, start) for ids, start in zip(parts, starts, strict=True)]
    return found


def shards(directory: Path) -> list[Path]:
    """Complete ones, in order."""
    return sorted(directory.glob("[0-9][0-9][0-9][0-9].npz"))
