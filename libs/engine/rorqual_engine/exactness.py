"""Checks on the running machine that results do not depend on how a sequence is run."""

from __future__ import annotations

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel

_NUM_TOKENS = 70
_CUTS = (0, 1, 2, 5, 20, 52)


def is_exact(model: CausalModel) -> bool:
    """Whether one short sequence gives the same bits whole, in unequal chunks and by the token.

    The kernels here are exact by construction, but matrix products come from a library that picks
    its code by CPU: on a kind of CPU not seen before, this is how to know.
    """
    tokens = [(37 * i + 11) % model.vocab_size for i in range(_NUM_TOKENS)]
    cache = model.new_cache(2)
    with cache.allocate(1) as whole, cache.allocate(1) as cut:
        expected = model.forward([SequenceChunk(tokens, 0, whole.pages, True, whole.window)], cache)
        for start, end in zip(_CUTS, (*_CUTS[1:], _NUM_TOKENS), strict=True):
            chunk = SequenceChunk(tokens[start:end], start, cut.pages, True, cut.window)
            found = model.forward([chunk], cache)
    return bool((expected == found).all())
