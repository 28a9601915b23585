"""Encoders around an encoder: one that cuts long texts, one that remembers what it has encoded."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from rorqual_recipe.tokens.cache import TokenCache
from rorqual_recipe.tokens.cuts import CutRule
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds

PIECE_CHARS = 16 << 10


class CuttingEncoder:
    """Cuts long texts where it is safe; pieces are encoded in parallel and cached one by one."""

    def __init__(self, encoder: TextEncoder, rule: CutRule, piece_chars: int = PIECE_CHARS) -> None:
        self.name = encoder.name
        self._encoder, self._rule, self._piece_chars = encoder, rule, piece_chars

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        if max(map(len, texts), default=0) <= self._piece_chars:
            return self._encoder.encode(texts)
        pieces = [self._rule.pieces(text, self._piece_chars) for text in texts]
        encoded = iter(self._encoder.encode([piece for group in pieces for piece in group]))
        return [_joined(list(islice(encoded, len(group)))) for group in pieces]


class CachingEncoder:
    """Encodes only what the cache does not know. The arrays it returns are shared: read only."""

    def __init__(self, encoder: TextEncoder, cache: TokenCache) -> None:
        self.name = encoder.name
        self._encoder, self._cache = encoder, cache

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        known = self._cache.find(texts)
        missing = list(dict.fromkeys(t for t, ids in zip(texts, known, strict=True) if ids is None))
        if not missing:
            return [ids for ids in known if ids is not None]
        fresh = dict(zip(missing, self._encoder.encode(missing), strict=True))
        self._cache.keep(fresh)
        return [fresh[text] if ids is None else ids for text, ids in zip(texts, known, strict=True)]


def _joined(parts: list[TokenIds]) -> TokenIds:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
