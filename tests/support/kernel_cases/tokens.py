"""Choosing tokens and checking drafts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.noise import ACCEPT, uniforms
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


def _positions(wanted: Callable[[float, float], bool], count: int) -> list[int]:
    """Of seed 0, whose noise (of draws, of acceptance) is as wanted."""
    tried = torch.arange(20000)
    draws = uniforms(torch.zeros_like(tried), tried).tolist()
    accepts = uniforms(torch.zeros_like(tried), tried, ACCEPT).tolist()
    found = [at for at in tried.tolist() if wanted(draws[at], accepts[at])]
    assert len(found) >= count
    return found[:count]


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
    low, high = (
        _positions(test, 1)[0] for test in (lambda d, a: d < 0.001, lambda d, a: d > 0.999)
    )
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
    other = uniforms(choices.seeds, choices.positions, ACCEPT).cpu()
    assert not (other == found).any()
    # Of two equal tokens the second is drawn exactly from noise of a half on.
    flat = torch.zeros(4, 2, device=kernels.device)
    check_equal(kernels("choose_tokens")(flat, choices).cpu(), (found >= 0.5).long())


def _checked(kernels: Kernels, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found = kernels("verify_drafts")(*given)
    for a, b in zip(found, kernels.twin("verify_drafts")(*given), strict=True):
        check_equal(a, b)
    return found


@case
def drafts_are_verified_as_by_the_twin(kernels: Kernels) -> None:
    vocab, num_rows = 70, 9
    logits, states = _logits(kernels, num_rows, vocab), _states(num_rows)
    choices = RowChoices.of(states, kernels.device)
    starts = torch.tensor([0, 1, 1, 4, 9], dtype=torch.int32, device=kernels.device)
    given = torch.softmax(logits + kernels.randn(num_rows, vocab), -1)
    drafts = torch.multinomial(given.cpu(), 1)[:, 0].to(kernels.device)
    bitmask = _bitmask(kernels, num_rows, vocab)
    _checked(kernels, logits, drafts, given, starts, choices, bitmask)
    accepted, tokens = _checked(kernels, logits, drafts, None, starts, choices, bitmask)
    assert accepted[1] == 0 and tokens[1] == -1, "a request without rows"


@case
def certain_drafts_give_the_tokens_of_plain_decoding(kernels: Kernels) -> None:
    logits, states = _logits(kernels, 6, 70), _states(6)
    choices = RowChoices.of(states, kernels.device)
    plain = kernels("choose_tokens")(logits, choices)
    drafts = plain.clone()
    drafts[3] = (drafts[3] + 1) % 70
    starts = torch.tensor([0, 6], dtype=torch.int32, device=kernels.device)
    accepted, token = kernels("verify_drafts")(logits, drafts, None, starts, choices)
    assert (int(accepted), int(token)) == (3, int(plain[3]))
    drafts = plain.clone()
    accepted, token = kernels("verify_drafts")(logits, drafts, None, starts, choices)
    assert (int(accepted), int(token)) == (5, int(plain[5]))


@case
def a_refused_draft_is_not_drawn_again(kernels: Kernels) -> None:
    """Accepted with 0.25 / 0.7; refused, it has no share of what is left."""
    positions = _positions(lambda draw, accept: draw < 0.2 and accept > 0.37, 3)
    positions += _positions(lambda draw, accept: draw < 0.2 and accept < 0.35, 2)
    states = [SamplingState(1.0, position=at) for at in positions for _ in range(2)]
    logits = torch.zeros(10, 4, device=kernels.device)
    given = torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 10, device=kernels.device)
    starts = torch.arange(0, 11, 2, dtype=torch.int32, device=kernels.device)
    drafts = torch.zeros(10, dtype=torch.int64, device=kernels.device)
    choices = RowChoices.of(states, kernels.device)
    accepted, tokens = _checked(kernels, logits, drafts, given, starts, choices)
    assert accepted.tolist() == [0, 0, 0, 1, 1]
    assert tokens.tolist() == [1, 1, 1, 0, 0]


@case
def a_refused_draft_leaves_what_the_target_has_more_of(kernels: Kernels) -> None:
    vocab = 20
    logits = kernels.randn(8, vocab)
    states = [SamplingState(1.0, seed=s, position=4) for s in range(4) for _ in range(2)]
    choices = RowChoices.of(states, kernels.device)
    certain = torch.zeros(8, vocab, device=kernels.device)
    certain[:, 3] = 1.0  # drafts that the target hardly ever draws
    logits[:, 3] = -30.0
    drafts = torch.full((8,), 3, device=kernels.device)
    starts = torch.tensor([0, 2, 4, 6, 8], dtype=torch.int32, device=kernels.device)
    accepted, tokens = _checked(kernels, logits, drafts, certain, starts, choices)
    assert not accepted.any() and not (tokens == 3).any()
    same = torch.softmax(logits, -1)
    drafts = same.argmax(-1)
    accepted, _ = _checked(kernels, logits, drafts, same * 0.999, starts, choices)
    assert (accepted == 1).all(), "equal distributions accept everything"
    # More than the target everywhere: nothing is left, so the target itself is drawn from.
    accepted, _ = _checked(kernels, logits, drafts, same * 50, starts, choices)
    assert not accepted.all()
