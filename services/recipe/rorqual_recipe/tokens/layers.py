"""Encoders around an encoder: one that cuts long texts, one that remembers what it has encoded."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from rorqual_recipe.tokens.cache import TextParts, TokenCache
from rorqual_recipe.tokens.cuts import CutRule
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds

CACHED_CHARS = 64 << 10  # large enough for most messages to be kept, and found, as they are


class CuttingEncoder:
    """Cuts long texts where it is safe, into pieces that are encoded in parallel."""

    def __init__(self, encoder: TextEncoder, rule: CutRule, piece_chars: int) -> None:
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
    """Encodes only what the cache does not know. The arrays it returns are read only.

    rule: cuts texts longer than CACHED_CHARS, so that one that grows is found but for its end.
    """

    def __init__(self, encoder: TextEncoder, cache: TokenCache, rule: CutRule | None) -> None:
        self.name = encoder.name
        self._encoder, self._cache, self._rule = encoder, cache, rule

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        encoded = self.encode_parts([(text,) for text in texts])
        return [np.frombuffer(ids, dtype="<i4") for ids in encoded]

    def encode_parts(self, texts: Sequence[TextParts]) -> list[bytes]:
        """Token ids, int32, of texts that come in parts; known ones are not even put together."""
        if self._rule is None or not any(map(_is_cut, texts)):
            return self._encode(texts)
        pieces = [self._pieces(parts, self._rule) for parts in texts]
        encoded = iter(self._encode([piece for group in pieces for piece in group]))
        return [b"".join(islice(encoded, len(group))) for group in pieces]

    def _pieces(self, parts: TextParts, rule: CutRule) -> list[TextParts]:
        if not _is_cut(parts):
            return [parts]
        return [(piece,) for piece in rule.pieces("".join(parts), CACHED_CHARS)]

    def _encode(self, texts: Sequence[TextParts]) -> list[bytes]:
        known = self._cache.find(texts)
        missing = list(dict.fromkeys(t for t, ids in zip(texts, known, strict=True) if ids is None))
        if not missing:
            return [ids for ids in known if ids is not None]
        encoded = self._encoder.encode(["".join(parts) for parts in missing])
        fresh = dict(zip(missing, map(_to_bytes, encoded), strict=True))
        self._cache.keep(fresh)
        return [fresh[text] if ids is None else ids for text, ids in zip(texts, known, strict=True)]


def _is_cut(parts: TextParts) -> bool:
    return sum(map(len, parts)) > CACHED_CHARS


def _to_bytes(ids: TokenIds) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()


def _joined(parts: list[TokenIds]) -> TokenIds:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
