"""Which encoder a tokenizer gets: the fastest one that proves exact."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rorqual_runtime.logs import get_logger

from rorqual_recipe.tokens.cache import TokenCache
from rorqual_recipe.tokens.cuts import CutRule, find_cut_rule
from rorqual_recipe.tokens.encoder import FastEncoder, HuggingFaceEncoder, TextEncoder, TokenIds
from rorqual_recipe.tokens.layers import CachingEncoder, PieceEncoder
from rorqual_recipe.tokens.probes import probe_texts

log = get_logger(__name__)


def make_text_encoder(
    tokenizer: Mapping[str, Any], *, prefer_fast: bool, cache: TokenCache
) -> CachingEncoder:
    """The fastest encoder that gives the reference's ids on every probe text.

    cache: remembers what is encoded.
    """
    reference = HuggingFaceEncoder(tokenizer)
    texts = probe_texts(tokenizer)
    expected = reference.encode(texts)
    encoder: TextEncoder = reference
    if prefer_fast:
        encoder = _fast_encoder(tokenizer, reference, texts, expected) or reference
    rule = _proved_rule(tokenizer, encoder, texts, expected)
    return CachingEncoder(encoder, cache, rule)


def _proved_rule(
    tokenizer: Mapping[str, Any],
    encoder: TextEncoder,
    texts: Sequence[str],
    expected: Sequence[TokenIds],
) -> CutRule | None:
    rule = find_cut_rule(tokenizer)
    if rule is None:
        log.info("long texts are not cut: no safe cuts are known for this pre-tokeniser")
    elif _num_differing(PieceEncoder(encoder, rule), texts, expected):
        log.warning("long texts are not cut: their pieces differ on probe texts")
        return None
    return rule


def _fast_encoder(
    tokenizer: Mapping[str, Any],
    reference: TextEncoder,
    texts: Sequence[str],
    expected: Sequence[TokenIds],
) -> TextEncoder | None:
    try:
        fast = FastEncoder(tokenizer, reference)
        num_differing = _num_differing(fast, texts, expected)
    except Exception as err:  # the library raises many types, and any of them means "no"
        log.warning("fastokens can't load this tokenizer: %s", err)
        return None
    if num_differing:
        log.warning("fastokens differs on %d probe texts, using tokenizers", num_differing)
        return None
    return fast


def _num_differing(encoder: TextEncoder, texts: Sequence[str], expected: Sequence[TokenIds]) -> int:
    pairs = zip(encoder.encode(texts), expected, strict=True)
    return sum(not np.array_equal(ours, theirs) for ours, theirs in pairs)
