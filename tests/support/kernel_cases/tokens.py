"""Choosing tokens."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.noise import uniforms
from rorqual_engine.sampling import SamplingState, sample
from rorqual_engine.sampling import uniforms as host_uniforms

from tests.support.kernel_cases.harness import (
    Kernels,
    case,
    check_equal,
)


def _logits(kernels: Kernels, rows: int, vocab: int) -> torch.Tensor:
    logits = 3 * torch.randn(rows, vocab)
    logits[:, 10:20] = logits[:, 9:10]
    logits[0, 20:] = logits[0].max()
    return logits.to(kernels.device)


def _states(count: int) -> list[SamplingState]:
    """The first is greedy."""
    rng = random.Random(5)
    return [SamplingState()] * min(count, 1) + [
        SamplingState(
            temperature=rng.choice([0.0, 0.5, 1.0, 2.0, 1e-3]),
            top_p=rng.choice([1.0, 0.9, 0.3]),
            top_k=rng.choice([0, 1, 7, 40]),
            min_p=rng.choice([0.0, 0.1]),
            seed=rng.getrandbits(64),
            position=rng.randrange(1000),
        )
        for _ in range(count - 1)
    ]


def _bitmask(kernels: Kernels, rows: int, vocab: int) -> torch.Tensor:
    words = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), dtype=torch.int64)
    words[0], words[1, 1:] = -1, 0
    words[1, 0] = 1 << 7
    return words.int().to(kernels.device)


@case
def tokens_are_those_of_the_cpu(kernels: Kernels) -> None:
    vocab = 75
    for num_rows in (10, 1):
        logits, states = _logits(kernels, num_rows, vocab), _states(num_rows)
        choices = RowChoices.of(states, kernels.device)
        for bitmask in (None, _bitmask(kernels, 10, vocab)[:num_rows]):
            host_mask = None if bitmask is None else bitmask.cpu()
            expected = torch.from_numpy(sample(logits.cpu(), states, host_mask).ids)
            found = kernels("choose_tokens")(logits, choices, bitmask)
            check_equal(found.cpu(), expected)
            check_equal(kernels.twin("choose_tokens")(logits, choices, bitmask).cpu(), expected)
    none = RowChoices.of([], kernels.device)
    assert kernels("choose_tokens")(logits[:0], none).shape == (0,)


def _position(wanted: Callable[[float], bool]) -> int:
    """Of seed 0, whose noise is as wanted."""
    tried = torch.arange(20000)
    draws = uniforms(torch.zeros_like(tried), tried).tolist()
    return next(at for at in tried.tolist() if wanted(draws[at]))


@case
def cuts_keep_exactly_what_they_should(kernels: Kernels) -> None:
    """Noise close to 1 names the last token kept, noise close to 0 the first."""
    weights = torch.tensor([0.5, 1.0, 0.5, 0.26, 0.26, 0.1])
    kept = {
        (1.0, 0, 0.0): (0, 5),
        (1.0, 0, 0.25): (0, 4),
        (1.0, 0, 0.27): (0, 2),
        (1.0, 2, 0.0): (0, 1),
        (1.0, 4, 0.0): (0, 3),
        (1.0, 4, 0.3): (0, 2),
        (0.38, 0, 0.0): (1, 1),
        (0.39, 0, 0.0): (0, 1),
        (0.99, 3, 0.0): (0, 2),
        (0.7, 3, 0.0): (0, 1),
    }
    low, high = _position(lambda noise: noise < 0.001), _position(lambda noise: noise > 0.999)
    states, expected = [], []
    for (top_p, top_k, min_p), ends in kept.items():
        states += [SamplingState(1.0, top_p, top_k, min_p, 0, at) for at in (low, high)]
        expected += ends
    choices = RowChoices.of(states, kernels.device)
    ids = torch.tensor([0, 1, 64, 65, 66, 67])  # in several blocks; nothing in between
    logits = torch.full((len(states), 68), float("-inf"))
    logits[:, ids] = weights.log() + 3
    logits = logits.to(kernels.device)
    for find in (kernels, kernels.twin):
        found = find("choose_tokens")(logits, choices)
        check_equal(found.cpu(), ids[expected])


@case
def noise_is_that_of_the_cpu(kernels: Kernels) -> None:
    seeds, positions = [0, 1, 2**63 + 5, 2**64 - 1], [0, 7, 10**6, 3]
    states = [SamplingState(1.0, seed=s, position=p) for s, p in zip(seeds, positions, strict=True)]
    choices = RowChoices.of(states, kernels.device)
    found = uniforms(choices.seeds, choices.positions).cpu()
    check_equal(found, torch.from_numpy(host_uniforms(seeds, positions)))
    # Of two equal tokens the second is drawn exactly from noise of a half on.
    flat = torch.zeros(4, 2, device=kernels.device)
    check_equal(kernels("choose_tokens")(flat, choices).cpu(), (found >= 0.5).long())
