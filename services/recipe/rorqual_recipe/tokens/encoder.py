"""Encoding of rendered segments: exact ids, with the fastest encoder that proves exact."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import fastokens
import numpy as np
import numpy.typing as npt
from rorqual_runtime.logs import get_logger
from tokenizers import Tokenizer

from rorqual_recipe.encodings.base import Segment, Text

log = get_logger(__name__)

PROBE_TEXTS = (
    "Hello, world!",
    "  leading,\ttabs and\n\n\nlines  ",
    "naïve café — “quotes” … ½",
    "def f(x):\n    return x ** 2  # 12345 0x1f\r\n",
    "深度求索把推理服务拆开。",
    "Ünïcödé e\u0301 \u200d\ufe0f 👩‍👩‍👧‍👦🇫🇷",
    "مرحبا שלום नमस्ते สวัสดี",
    "don't WON'T it's 1,234.56 a_b__c <|not_special|> </s> [INST]",
    "\x00\x07\u2028 \ufffd\U0010ffff",
    "a" * 300 + " " * 70 + "\n" * 9,
)


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
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]


class FastEncoder:
    """The `fastokens` library. Raises at construction what it can't support.

    What it fails on later, such as a million spaces in a row, `reference` encodes.
    """

    name = "fastokens"

    def __init__(self, tokenizer: Mapping[str, Any], reference: TextEncoder) -> None:
        self._reference = reference
        self._tokenizer = fastokens.Tokenizer.from_json_str(
            json.dumps(without_added_tokens(tokenizer))
        )

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        """See TextEncoder.encode. Ids never become Python objects, so the lock is free."""
        try:
            flat, offsets = self._tokenizer.encode_batch_flat(list(texts))
        except ValueError as err:
            log.warning("fastokens can't encode a text: %s", err)
            return self._reference.encode(texts)
        ids = np.frombuffer(flat, dtype="<u4").astype(np.int32)
        bounds = np.frombuffer(offsets, dtype="<u8").tolist()
        return [ids[start:end] for start, end in pairwise(bounds)]


def without_added_tokens(tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """A tokenizer.json in which nothing but the model's own vocabulary can match."""
    return {
        **tokenizer,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def make_text_encoder(tokenizer: Mapping[str, Any], *, prefer_fast: bool) -> TextEncoder:
    """fastokens when it gives the reference's ids on every probe text, else `tokenizers`."""
    reference = HuggingFaceEncoder(tokenizer)
    if not prefer_fast:
        return reference
    try:
        fast = FastEncoder(tokenizer, reference)
        pairs = zip(fast.encode(PROBE_TEXTS), reference.encode(PROBE_TEXTS), strict=True)
        num_differing = sum(not np.array_equal(ours, theirs) for ours, theirs in pairs)
    except Exception as err:  # the library raises many types, and any of them means "no"
        log.warning("fastokens can't load this tokenizer: %s", err)
        return reference
    if num_differing:
        log.warning("fastokens differs on %d probe texts, using tokenizers", num_differing)
        return reference
    return fast


def encode_segments(segments: Sequence[Segment], encoder: TextEncoder) -> TokenIds:
    """Token ids of a prompt; a special id occurs exactly where a Special stands."""
    texts = iter(encoder.encode([s.text for s in segments if isinstance(s, Text)]))
    parts = [
        next(texts) if isinstance(segment, Text) else np.array([segment.token_id], dtype=np.int32)
        for segment in segments
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
