"""Rendered segments to one array of ids."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from rorqual_recipe.encodings.base import Segment, Text
from rorqual_recipe.tokens.encoder import TextEncoder, TokenIds


def encode_segments(segments: Sequence[Segment], encoder: TextEncoder) -> TokenIds:
    """Token ids of a prompt; a special id occurs exactly where a Special stands.

    Texts with nothing between them are encoded as one; an Image is its one placeholder token.
    """
    texts: list[str] = []
    marks: list[list[int]] = [[]]  # ids before each text, and behind the last
    for is_text, group in groupby(segments, key=lambda segment: isinstance(segment, Text)):
        if is_text:
            texts.append("".join(s.text for s in group if isinstance(s, Text)))
            marks.append([])
        else:
            marks[-1].extend(s.token_id for s in group if not isinstance(s, Text))
    encoded = encoder.encode(texts)
    parts = [np.array(marks[0], dtype=np.int32)]
    for ids, behind in zip(encoded, marks[1:], strict=True):
        parts += [ids, np.array(behind, dtype=np.int32)]
    return np.concatenate(parts)
