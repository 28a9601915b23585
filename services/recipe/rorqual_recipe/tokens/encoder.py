"""Encoding of rendered segments: exact ids, with the fastest encoder that proves exact."""

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import fastokens
from rorqual_runtime.telemetry import get_logger
from tokenizers import Tokenizer

from rorqual_recipe.encodings.base import Segment, Special

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


class TextEncoder(Protocol):
    """Ordinary text to ids; what looks like a special token is text."""

    name: str

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of the text, without any added vocabulary."""
        ...


class HuggingFaceEncoder:
    """The `tokenizers` library without the added vocabulary: the reference."""

    name = "tokenizers"

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        self._tokenizer = Tokenizer.from_str(json.dumps(without_added_tokens(tokenizer)))

    def encode(self, text: str) -> Sequence[int]:
        """See TextEncoder.encode."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class FastEncoder:
    """The `fastokens` library. Raises at construction what it can't support."""

    name = "fastokens"

    def __init__(self, tokenizer: Mapping[str, Any]) -> None:
        self._tokenizer = fastokens.Tokenizer.from_json_str(
            json.dumps(without_added_tokens(tokenizer))
        )

    def encode(self, text: str) -> Sequence[int]:
        """See TextEncoder.encode."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids


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
        fast = FastEncoder(tokenizer)
        differing = [t for t in PROBE_TEXTS if list(fast.encode(t)) != list(reference.encode(t))]
    except Exception as err:  # the library raises many types, and any of them means "no"
        log.warning("fastokens can't load this tokenizer: %s", err)
        return reference
    if differing:
        log.warning("fastokens differs on %d probe texts, using tokenizers", len(differing))
        return reference
    return fast


def encode_segments(segments: Sequence[Segment], encoder: TextEncoder) -> "array[int]":
    """Token ids (int32) of a prompt; a special id occurs exactly where a Special stands."""
    ids = array("i")
    for segment in segments:
        if isinstance(segment, Special):
            ids.append(segment.token_id)
        else:
            ids.extend(encoder.encode(segment.text))
    return ids
