"""First values that let a model copy before it has learned anything.

To go on from "the code of Zaifo is" a row must find where that stood before, and read what came
behind it: rows tell what stands one and two places before them, later rows look for rows that tell
what they themselves are (an induction head). Found by chance, from random values, that takes
millions of tokens, and nothing else gets far before. So training begins with it, and is free to
change it: some dimensions of the streams are kept for it, all else begins at random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rorqual_engine.models.deepseek.config import DeepseekConfig
from rorqual_engine.models.deepseek.rope import frequencies

Weights = dict[str, torch.Tensor]
_CONSTANT = 3.5
"""In every row, at dimension 0; what heads that look at places, not at words, ask with."""
_SHARPNESS = 20.0
_SHARP_PAIRS = 3
"""Positional pairs that tell neighbours apart; the others turn too slowly."""
_MATCH_SCORES = (6.0, 4.0)
"""Of a row behind the same token, and of one whose token before is the same too"""
_HEAD = 0.3


@dataclass(frozen=True)
class _Space:
    """Dimensions of the streams with a meaning to begin with."""

    own: slice
    """Which token a row is"""
    last: slice
    """The first half of own of the row before"""
    before: slice
    """of the row two before"""
    copied: slice
    """own of a row that was found"""
    spaced: int
    """Whether a token begins with a space"""
    wants_space: int
    """Whether the next one does"""
    part: int
    """Dimensions of a half"""

    @property
    def end(self) -> int:
        return self.wants_space + 1

    @classmethod
    def of(cls, config: DeepseekConfig) -> _Space:
        part = (config.head_dim - config.rope_dim) // 4
        ends = [1 + part * count for count in (0, 2, 3, 4, 6)]
        own, last, before, copied = map(slice, ends, ends[1:])
        return cls(own, last, before, copied, copied.stop, copied.stop + 1, part)


def wire(weights: Weights, config: DeepseekConfig, twins: Sequence[tuple[int, int]]) -> None:
    """Changes random first values in place; experts not joined yet.

    twins: tokens and what they are with a space before them: the same, but for one dimension.
    """
    space = _Space.of(config)
    _keep_clear(weights, space)
    _pair(weights, space, twins)
    _look_back(weights, config, space)
    for plan in config.layers[config.num_encoder_layers :: 2]:
        _find(weights, f"layers.{plan.index}.attn.", config, space)
    weights["head.weight"][:, space.copied] = _HEAD * weights["embed.weight"][:, space.own]


def _keep_clear(weights: Weights, space: _Space) -> None:
    """Tokens say which they are; nobody writes where something has a meaning."""
    embed, end = weights["embed.weight"], space.end
    embed[:, space.own] *= 2
    embed[:, space.own.stop : end] = 0
    embed[:, 0] = _CONSTANT
    for name, value in weights.items():
        if name.startswith("layers.") and name.endswith(("wo_b.weight", ".w2.weight")):
            value[:end] = 0
        elif name.startswith(("aligner.w2", "image_")):
            value[:end] = 0
            if value.dim() == 1:
                value[0] = _CONSTANT


def _pair(weights: Weights, space: _Space, twins: Sequence[tuple[int, int]]) -> None:
    embed, head = weights["embed.weight"], weights["head.weight"]
    head[:, space.wants_space] = 0
    for plain, spaced in twins:
        embed[spaced, space.own] = embed[plain, space.own]
        for token, sign in ((plain, -1), (spaced, 1)):
            embed[token, space.spaced] = sign
            head[token, space.wants_space] = sign * _HEAD


def _look_back(weights: Weights, config: DeepseekConfig, space: _Space) -> None:
    """The first layer: heads that look one, two and three places back; what the first two see."""
    query, key, latent, narrow, out = _parts(weights, "layers.0.attn.")
    rms = round(float(weights["embed.weight"].double().square().mean().sqrt()), 4)
    # rounded, because a sum's last bits depend on the number of threads
    latent[0] = 0
    latent[0, 0] = 6 * rms / _CONSTANT
    told = 6 / math.sqrt(1 + 35 / len(latent))
    start = config.head_dim - config.rope_dim
    for pair, freq in enumerate(frequencies(config.rope_main, config.rope_dim)[:_SHARP_PAIRS]):
        at = start + 2 * pair
        key[at : at + 2] = 0
        key[at, 0] = 3 * rms / _CONSTANT
        for head in range(min(3, config.num_heads)):
            row, angle = head * config.head_dim + at, (head + 1) * float(freq)
            query[row : row + 2] = 0
            turned = torch.tensor([math.cos(angle), -math.sin(angle)])
            query[row : row + 2, 0] = turned * _SHARPNESS / told
    part = space.part
    _select(key, 0, range(space.own.start, space.own.start + part), rms)
    for head, target in enumerate((space.last, space.before)):
        seen = head * config.head_dim
        _select(narrow, head * part, range(seen, seen + part), 1.0)
        _select(out, target.start, range(head * part, (head + 1) * part), 1.5)


def _find(weights: Weights, prefix: str, config: DeepseekConfig, space: _Space) -> None:
    """A late layer's first head: rows behind what this row is and what it comes behind."""
    query, key, latent, narrow, out = _parts(weights, prefix)
    part = space.part
    _select(latent, 1, range(space.own.start, space.own.start + part), 1.4)
    _select(latent, 1 + part, range(space.last.start, space.last.stop), 1.4)
    query[: config.head_dim] = 0
    for number, score in enumerate(_MATCH_SCORES):
        gain = score * math.sqrt(config.head_dim) / part
        places = range(1 + number * part, 1 + (number + 1) * part)
        _select(query, number * part, places, gain)
    keys = [key, weights.get(f"{prefix}compressor.wkv.weight")]
    for matrix in keys:
        if matrix is not None:
            _select(matrix, 0, range(space.last.start, space.before.stop), 1.4)
            _select(matrix, 2 * part, range(space.own.start, space.own.stop), 1.4)
    _select(narrow, 0, range(2 * part, 4 * part), 1.0)
    _select(out, space.copied.start, range(2 * part), 1.0)


def _parts(weights: Weights, prefix: str) -> tuple[torch.Tensor, ...]:
    names = ("wq_b", "wkv", "wq_a", "wo_a", "wo_b")
    return tuple(weights[f"{prefix}{name}.weight"] for name in names)


def _select(matrix: torch.Tensor, row: int, columns: range, gain: float) -> None:
    """Rows from this one on read one column each, and nothing else."""
    for number, column in enumerate(columns):
        matrix[row + number] = 0
        matrix[row + number, column] = gain
