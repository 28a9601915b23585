"""ref/choice.py's choose_tokens on the CPU's compiled kernel."""

from __future__ import annotations

import torch

from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.sampling import SamplingState, sample


def choose_tokens(
    logits: torch.Tensor, choices: RowChoices, bitmask: torch.Tensor | None = None
) -> torch.Tensor:
    """Exactly what sampling.sample chooses."""
    states = [
        SamplingState(
            temperature=1 / inverse if inverse else 0.0,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            seed=seed,
            position=position,
        )
        for inverse, top_k, top_p, min_p, seed, position in zip(
            choices.inverse.tolist(),
            choices.top_k.tolist(),
            choices.top_p.tolist(),
            choices.min_p.tolist(),
            choices.seeds.tolist(),
            choices.positions.tolist(),
            strict=True,
        )
    ]
    return torch.from_numpy(sample(logits, states, bitmask).ids)
