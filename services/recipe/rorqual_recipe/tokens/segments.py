"""Rendered segments to one array of ids."""

from collections.abc import Sequence

import numpy as np

from rorqual_recipe.encodings.base import Segment, Text
from rorqual_recipe.tokens.cache import TextParts
from rorqual_recipe.tokens.encoder import TokenIds
from rorqual_recipe.tokens.layers import CachingEncoder


def encode_segments(segments: Sequence[Segment], encoder: CachingEncoder) -> TokenIds:
    """Token ids of a prompt; a special id occurs exactly where a Special stands.

    Texts with nothing between them are encoded as one; an Image is its one placeholder token.
    """
    texts, num_before, special_ids = _runs(segments)
    encoded = encoder.encode_parts(texts)
    ends = np.cumsum([0, *map(len, encoded)])
    ids = np.empty(ends[-1] + len(special_ids), dtype=np.int32)
    for text_ids, start in zip(encoded, (ends[:-1] + num_before).tolist(), strict=True):
        ids[start : start + len(text_ids)] = text_ids
    order = np.arange(len(special_ids))
    ids[order + ends[np.searchsorted(num_before, order, side="right")]] = special_ids
    return ids


def _runs(segments: Sequence[Segment]) -> tuple[list[TextParts], list[int], list[int]]:
    """Texts between special tokens, how many of those stand before each text, and all of them."""
    texts: list[TextParts] = []
    num_before: list[int] = []
    special_ids: list[int] = []
    run: list[str] = []
    for segment in segments:
        if isinstance(segment, Text):
            run.append(segment.text)
            continue
        if run:
            texts.append(tuple(run))
            num_before.append(len(special_ids))
            run = []
        special_ids.append(segment.token_id)
    if run:
        texts.append(tuple(run))
        num_before.append(len(special_ids))
    return texts, num_before, special_ids
