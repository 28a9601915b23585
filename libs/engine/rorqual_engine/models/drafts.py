"""What a model's own draft module is asked and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rorqual_engine.sampling import SamplingState, sample

Sampler = Callable[[int, torch.Tensor], torch.Tensor]
"""(k, fp32 logits [S, V]) -> int64 [S], the place of the k-th guess of every block, k from 0."""


@dataclass(frozen=True)
class Anchor:
    """Where a block of guesses begins."""

    token_id: int
    """The last token; the model has not run it."""
    position: int
    """Its position: so many tokens are in the sequence's state."""
    window: int
    """The sequence's window slot."""
    window_floor: int = 0
    """Nothing before this position is read: where a replay began."""
    pages: Sequence[int] = ()
    """The sequence's pages, up to its last token's at least, for modules that keep keys there."""


@dataclass(frozen=True)
class Drafts:
    """S blocks of g guesses."""

    tokens: torch.Tensor
    """int64 [S, g]"""
    logits: torch.Tensor
    """fp32 [S, g, V]: what each was drawn from; V: the tokens that may be guessed"""
    raw_confidences: torch.Tensor
    """fp32 [S, g], before temperature and sigmoid"""
    confidences: torch.Tensor
    """fp32 [S, g]: chance that a guess is accepted when all before it are"""


def greedy(k: int, logits: torch.Tensor) -> torch.Tensor:
    """The likeliest of every row."""
    del k
    return logits.argmax(-1)


def as_the_target_draws(states: Sequence[SamplingState]) -> Sampler:
    """Each guess is the token that the model would draw if its logits were these.

    states: of each block's first guess. The noise is the very one that the model's own draw at that
    position takes: where both distributions are alike, so are the tokens.
    """

    first = [replace(state, num_logprobs=None) for state in states]
    is_greedy = all(state.temperature == 0 for state in first)

    def draw(k: int, logits: torch.Tensor) -> torch.Tensor:
        here = first
        if k and not is_greedy:  # the likeliest token takes no noise
            here = [replace(state, position=state.position + k) for state in first]
        return torch.from_numpy(sample(logits, here).ids).to(logits.device)

    return draw
