"""Rendered segments to token ids."""

from collections.abc import Sequence

import numpy as np

from rorqual_recipe.encodings.base import Segment
from rorqual_recipe.tokens.cache import TextParts
from rorqual_recipe.tokens.encoder import TokenIds
from rorqual_recipe.tokens.layers import CachingEncoder


def encode_segments(segments: Sequence[Segment], encoder: CachingEncoder) -> TokenIds:
    """Token ids of a prompt, read only; see segments_to_bytes."""
    return np.frombuffer(segments_to_bytes(segments, encoder), dtype="<i4")


def segments_to_bytes(segments: Sequence[Segment], encoder: CachingEncoder) -> bytes:
    """Token ids of a prompt, int32 little endian.

    A special id occurs exactly where a Special stands; an Image is its one placeholder token. Texts
    with nothing between them are encoded as one.
    """
    texts: list[TextParts] = []
    pieces: list[bytes | None] = []  # None: the next of the texts
    run: list[str] = []
    for segment in segments:
        if isinstance(segment, str):
            run.append(segment)
            continue
        if run:
            texts.append(tuple(run))
            pieces.append(None)
            run = []
        pieces.append(segment.token_id.to_bytes(4, "little"))
    if run:
        texts.append(tuple(run))
        pieces.append(None)
    encoded = iter(encoder.encode_parts(texts))
    return b"".join([next(encoded) if piece is None else piece for piece in pieces])
