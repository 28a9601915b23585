"""Encoders around an encoder: one that remembers what it has encoded, one that cuts all it can."""

from collections.abc import Hashable, Sequence
from itertools import islice

import numpy as np

from rorqual_recipe.tokens.cache import TextParts, TokenCache
from rorqual_recipe.tokens.cuts import CutRule
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds

CACHED_CHARS = 64 << 10  # large enough for most messages to be kept, and found, as they are
_COMPARED_CHARS = 1024


class PieceEncoder:
    """Cuts texts wherever it is safe: shows that the pieces' ids are those of the whole."""

    def __init__(self, encoder: TextEncoder, rule: CutRule) -> None:
        self.name = encoder.name
        self._encoder, self._rule = encoder, rule

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        pieces = [self._rule.pieces(text, piece_chars=1) for text in texts]
        encoded = iter(self._encoder.encode([piece for group in pieces for piece in group]))
        return [np.concatenate(list(islice(encoded, len(group)))) for group in pieces]


class CachingEncoder:
    """Encodes only what the cache does not know. The arrays it returns are read only.

    rule: cuts texts longer than CACHED_CHARS, so that their pieces are encoded in parallel and one
    that grows is found but for its end.
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
        sizes = [sum(map(len, parts)) for parts in texts]
        if self._rule is None or max(sizes, default=0) <= CACHED_CHARS:
            return self._encode(texts)
        pieces = [
            [parts] if size <= CACHED_CHARS else _pieces(parts, self._rule)
            for parts, size in zip(texts, sizes, strict=True)
        ]
        encoded = iter(self._encode([piece for group in pieces for piece in group]))
        return [b"".join(islice(encoded, len(group))) for group in pieces]

    def _encode(self, texts: Sequence[TextParts]) -> list[bytes]:
        known = self._cache.find(texts)
        pairs = list(zip(texts, known, strict=True))
        missing = {_identity(text): text for text, ids in pairs if ids is None}
        if not missing:
            return [ids for ids in known if ids is not None]
        encoded = self._encoder.encode(["".join(parts) for parts in missing.values()])
        fresh = dict(zip(missing, map(_to_bytes, encoded), strict=True))
        self._cache.keep(zip(missing.values(), fresh.values(), strict=True))
        return [fresh[_identity(text)] if ids is None else ids for text, ids in pairs]


def _identity(text: TextParts) -> Hashable:
    """Equal short texts are encoded once; to hash long ones costs too much beside encoding them."""
    return text if sum(map(len, text)) <= _COMPARED_CHARS else id(text)


def _pieces(parts: TextParts, rule: CutRule) -> list[TextParts]:
    return [(piece,) for piece in rule.pieces("".join(parts), CACHED_CHARS)]


def _to_bytes(ids: TokenIds) -> bytes:
    return ids.astype("<i4", copy=False).tobytes()
