"""The libraries that turn ordinary text into ids."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import fastokens
import numpy as np
import numpy.typing as npt
from rorqual_runtime.logs import get_logger
from tokenizers import Tokenizer

from rorqual_recipe.tokens.patterns import with_known_spellings

log = get_logger(__name__)

TokenIds = npt.NDArray[np.int32]


class TextEncoder(Protocol):
    """Ordinary text to ids; what looks like a special token is text."""

    name: str

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text, without any added vocabulary."""
        ...


class HuggingFaceEncoder:
    """The `tokenizers` library without the added vocabulary: the reference."""

    name = "tokenizers"

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        self._tokenizer = Tokenizer.from_str(json.dumps(without_added_tokens(tokenizer)))

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]


class FastEncoder:
    """The `fastokens` library. Raises at construction what it can't support.

    What it fails on later, such as a million spaces in a row, `reference` encodes.
    """

    name = "fastokens"

    def __init__(self, tokenizer: Mapping[str, Any], reference: TextEncoder) -> None:
        self._reference = reference
        plain = without_added_tokens(tokenizer)
        plain["pre_tokenizer"] = with_known_spellings(plain.get("pre_tokenizer"))
        self._tokenizer = fastokens.Tokenizer.from_json_str(json.dumps(plain))

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode. Ids never become Python objects, so the lock is free."""
        try:
            return self._encode(texts)
        except ValueError:
            return [self._encode_alone(text) for text in texts]

    def _encode(self, texts: Sequence[str]) -> list[TokenIds]:
        flat, offsets = self._tokenizer.encode_batch_flat(list(texts))
        ids = np.frombuffer(flat, dtype="<i4")
        bounds = np.frombuffer(offsets, dtype="<u8").tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]

    def _encode_alone(self, text: str) -> TokenIds:
        try:
            return self._encode([text])[0]
        except ValueError as err:
            log.warning("fastokens can't encode a text of %d characters: %s", len(text), err)
            return self._reference.encode([text])[0]


def without_added_tokens(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer.json in which nothing but the model's own vocabulary can match."""
    return {
        **tokenizer,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
