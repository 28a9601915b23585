"""Drafters by name."""

from __future__ import annotations

from rorqual_policy.draft_budget import MOST_GUESSES, DrafterName

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.speculation.drafter import Drafter, NoDrafter
from rorqual_engine.speculation.dspark import DsparkDrafter
from rorqual_engine.speculation.ngram import NgramDrafter


def open_drafter(
    name: DrafterName, model: CausalModel, cache: PagedKvCache, num_guesses: int
) -> Drafter:
    """num_guesses: of one sequence and step, 1 to MOST_GUESSES. auto: the model's own draft module
    where one is loaded, else nobody. Raises: UnsupportedModel."""
    if not 1 <= num_guesses <= MOST_GUESSES:
        raise ValueError(f"need 1 to {MOST_GUESSES} guesses, got {num_guesses}")
    if name == "auto":
        name = "dspark" if model.num_drafts else "none"
    if name == "dspark":
        if not model.num_drafts:
            raise UnsupportedModel(
                "drafter dspark needs a checkpoint with a draft module, and RORQUAL_DRAFTS not 0"
            )
        return DsparkDrafter(model, cache, num_guesses)
    return NgramDrafter(num_guesses) if name == "ngram" else NoDrafter()
