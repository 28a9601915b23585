"""Steps that all ranks of a group make together, whether they have work or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.parallel.exchange import ExpertExchange

_IDLE, _WORK, _LEAVING = range(3)


class LockStep:
    """Every rank attends to its own sequences with its own cache; the experts are common.

    A rank calls step() again and again, also without work: the others wait for it, but never
    longer than the exchange's limit.
    """

    def __init__(self, model: CausalModel, cache: PagedKvCache, exchange: ExpertExchange) -> None:
        self._model, self._cache, self._exchange = model, cache, exchange

    def step(self, chunks: Sequence[SequenceChunk]) -> torch.Tensor | None:
        """Logits of this rank's chunks; None when no rank had any. Raises: BadChunk, after which
        the group goes on; GroupLost, after which it is over."""
        states = self._exchange.agree(_WORK if chunks else _IDLE)
        return self._model.forward(chunks, self._cache) if _WORK in states else None

    def leave(self) -> None:
        """Takes part without work until every rank wants to leave. Raises: GroupLost."""
        while True:
            states = self._exchange.agree(_LEAVING)
            if all(state == _LEAVING for state in states):
                return
            if _WORK in states:
                self._model.forward([], self._cache)
