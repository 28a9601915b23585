"""The model's own draft module as a drafter."""

from __future__ import annotations

from collections.abc import Sequence

from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.models.drafts import Anchor, as_the_target_draws
from rorqual_engine.speculation.drafter import Drafter, Guesses, GuessRequest


class DsparkDrafter(Drafter):
    """A block of guesses from the keys that the module keeps of every sequence."""

    name = "dspark"

    def __init__(self, model: CausalModel, cache: PagedKvCache, num_guesses: int) -> None:
        """model: with a draft module, see `CausalModel.num_drafts`; cache: of the sequences."""
        assert model.num_drafts > 0
        self._model, self._cache = model, cache
        self.num_guesses = min(num_guesses, model.num_drafts)

    def guess(self, requests: Sequence[GuessRequest]) -> list[Guesses]:
        sampler = as_the_target_draws([request.sampling for request in requests])
        drafts = self._model.draft([_anchor(r) for r in requests], self._cache, sampler)
        both = zip(drafts.tokens.tolist(), drafts.confidences.tolist(), strict=True)
        counts = [min(self.num_guesses, request.num_wanted) for request in requests]
        return [
            Guesses(tokens[:count], confidences[:count])
            for count, (tokens, confidences) in zip(counts, both, strict=True)
        ]


def _anchor(request: GuessRequest) -> Anchor:
    window = 0 if request.window is None else request.window
    return Anchor(request.token_id, request.position - 1, window, pages=request.pages)
