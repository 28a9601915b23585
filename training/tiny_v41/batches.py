"""Samples of one step, as padded sequences of about equal length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from training.tiny_v41.model.draft import Anchors
from training.tiny_v41.model.text import Sequences
from training.tiny_v41.rendering import Renderer, Sample
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.mixture import drawn
from training.tiny_v41.tasks.shapes import paint

_LEAST_ROWS = 1024
"""Padded rows below which sequences go along with longer ones."""
_MOST_ROWS = 8192
"""Padded rows of a batch, unless one sequence has more."""
_FINE, _FINE_UNTIL, _COARSE = 16, 256, 64
"""Lengths are padded to multiples of the first, from the second on to those of the third."""
_NUM_PROBES = 8
_NUM_ANCHORS = 8


@dataclass(frozen=True)
class Shown:
    """Shapes on the pictures of a batch, K in all."""

    pictures: torch.Tensor
    """int64 [K]"""
    rows: torch.Tensor
    """int64 [K]: of a picture's rows in a prompt"""
    words: torch.Tensor
    """int64 [K, 2]: tokens of colour and form"""


@dataclass(frozen=True)
class Batch:
    """Sequences, and what is to be learned from their late rows."""

    given: Sequences
    labels: torch.Tensor
    """int64 [B, L]: the token behind each late row"""
    weights: torch.Tensor
    """fp32 [B, L]: how much each counts; 0 = nothing to learn"""
    is_answer: torch.Tensor
    """bool [B, L]"""
    is_last: torch.Tensor
    """bool [B, L]: of the last answer"""
    anchors: Anchors
    """Tokens of answers that a draft module learns to go on from"""
    families: tuple[str, ...]
    pixels: torch.Tensor | None = None
    """uint8 [N, side, side, 3]"""
    shown: Shown | None = None
    """What is on them"""


def samples_of_step(
    renderer: Renderer,
    seed: str,
    shares: Mapping[str, float],
    max_tokens: int,
    step_tokens: int,
    *,
    held_out: bool = False,
) -> list[Sample]:
    """Exercises until their tokens are enough for a step; the same seed, the same samples."""
    samples: list[Sample] = []
    total = number = 0
    while total < step_tokens:
        draw = Draw(f"{seed} {number}", held_out=held_out)
        number += 1
        sample = renderer.sample(drawn(draw, shares, max_tokens))
        if len(sample) <= max_tokens:
            samples.append(sample)
            total += len(sample)
    return samples


def halves_of(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Every sample once, in two lists of about as many tokens."""
    halves: list[list[Sample]] = [[], []]
    tokens = [0, 0]
    for sample in sorted(samples, key=len, reverse=True):
        lighter = int(tokens[1] < tokens[0])
        halves[lighter].append(sample)
        tokens[lighter] += len(sample)
    return halves


def batches_of(
    samples: Sequence[Sample], window: int, image_id: int, prompt_weight: float, seed: int
) -> Iterator[Batch]:
    """Every sample once, with others of about its length."""
    rng = np.random.default_rng(seed)
    group: list[Sample] = []
    length = 0
    for sample in sorted(samples, key=len, reverse=True):
        padded = _padded(len(sample))
        rows = length * len(group)
        is_other = padded < length and rows >= _LEAST_ROWS
        if group and (is_other or rows + length > _MOST_ROWS):
            yield _batch(group, window, image_id, prompt_weight, rng)
            group = []
        length = length if group else padded
        group.append(sample)
    yield _batch(group, window, image_id, prompt_weight, rng)


def _padded(length: int) -> int:
    """Few different lengths: a library makes a product anew for every size it has not seen."""
    step = _FINE if length <= _FINE_UNTIL else _COARSE
    return -(-length // step) * step


def _batch(
    group: Sequence[Sample],
    window: int,
    image_id: int,
    prompt_weight: float,
    rng: np.random.Generator,
) -> Batch:
    longest = _padded(len(group[0]))
    begins = [max(0, s.num_prompt_tokens - window) for s in group]
    late = _padded(max(len(s) - begin for s, begin in zip(group, begins, strict=True)))
    shape = (len(group), late)
    ids = np.zeros((len(group), longest), np.int64)
    labels, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    is_answer, is_last = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for row, (sample, begin) in enumerate(zip(group, begins, strict=True)):
        ids[row, : len(sample)] = sample.ids
        following = slice(begin + 1, len(sample))
        count = len(sample) - begin - 1
        labels[row, :count] = sample.ids[following]
        is_answer[row, :count] = sample.is_answer[following]
        is_last[row, max(0, sample.last_answer - begin - 1) : count] = True
        weights[row, :count] = np.where(sample.is_answer[following], 1.0, prompt_weight)
        weights[row, :count][sample.ids[following] == image_id] = 0
    lengths = np.array([len(sample) for sample in group])
    given = Sequences(
        torch.from_numpy(ids),
        torch.from_numpy(lengths),
        torch.tensor(begins),
        late,
        _probes(rng, lengths),
        _probes(rng, lengths - np.array(begins)),
    )
    pictures = [paint(picture) for sample in group for picture in sample.pictures]
    return Batch(
        given,
        torch.from_numpy(labels),
        torch.from_numpy(weights),
        torch.from_numpy(is_answer),
        torch.from_numpy(is_last),
        _anchors(rng, is_answer),
        tuple(sample.family for sample in group),
        torch.from_numpy(np.stack(pictures)) if pictures else None,
        _shown(group) if pictures else None,
    )


def _shown(group: Sequence[Sample]) -> Shown:
    each = [picture for sample in group for picture in sample.shown]
    named = [(number, shape) for number, picture in enumerate(each) for shape in picture]
    return Shown(
        torch.tensor([number for number, _ in named]),
        torch.tensor([shape.row for _, shape in named]),
        torch.tensor([shape.words for _, shape in named]),
    )


def _anchors(rng: np.random.Generator, is_answer: npt.NDArray[np.bool_]) -> Anchors:
    """Some places of every sequence whose token, and the one behind it, are an answer's."""
    is_fit = is_answer.copy()
    is_fit[:, 1:] &= is_answer[:, :-1]
    is_fit[:, 0] = False
    order = np.where(is_fit, rng.random(is_fit.shape), 2.0)
    kept = np.argsort(order, axis=1)[:, :_NUM_ANCHORS]
    is_kept = np.zeros_like(is_fit)
    np.put_along_axis(is_kept, kept, True, axis=1)
    sequences, rows = np.nonzero(is_kept & is_fit)
    return Anchors(torch.from_numpy(sequences), torch.from_numpy(rows))


def _probes(rng: np.random.Generator, counts: npt.NDArray[np.int64]) -> torch.Tensor:
    """Rows of every sequence, chosen by chance among its count; int64 [B, R]."""
    shares = rng.random((len(counts), _NUM_PROBES))
    return torch.from_numpy((shares * counts[:, None]).astype(np.int64))
