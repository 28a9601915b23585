"""Prompt segments to ids: cache, fallback, special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_recipe.convert import fill_load
from rorqual_recipe.encodings.base import Image, Segment, Special
from rorqual_recipe.tokens.cache import TokenCache
from rorqual_recipe.tokens.encoder import FastEncoder, HuggingFaceEncoder, TokenIds
from rorqual_recipe.tokens.layers import CachingEncoder
from rorqual_recipe.tokens.probes import probe_texts
from rorqual_recipe.tokens.segments import encode_segments
from rorqual_recipe.tokens.select import make_text_encoder

from tests.support.chat_model_dir import make_chat_tokenizer

TOKENIZER = json.loads(make_chat_tokenizer().to_str())
REFERENCE = HuggingFaceEncoder(TOKENIZER)


class CountingEncoder:
    """One id a character, and a record of what was asked."""

    name = "counting"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        self.asked += texts
        return [np.array([ord(char) for char in text], dtype=np.int32) for text in texts]


def ids_of(encoder: CachingEncoder, *texts: str) -> list[list[int]]:
    return [ids.tolist() for ids in encoder.encode(texts)]


def test_a_text_is_encoded_once() -> None:
    inner = CountingEncoder()
    memory = TokenCache(1 << 20)
    cache = CachingEncoder(inner, memory, None)
    assert ids_of(cache, "ab", "c", "ab") == [[97, 98], [99], [97, 98]]
    assert ids_of(cache, "c", "d") == [[99], [100]]
    assert inner.asked == ["ab", "c", "d"]
    assert (memory.counts.num_hits, memory.counts.hit_chars) == (1, 1)
    assert (memory.counts.num_misses, memory.counts.missed_chars) == (4, 6)


def test_a_load_report_tells_what_the_cache_saved() -> None:
    memory = TokenCache(1 << 20)
    cache = CachingEncoder(CountingEncoder(), memory, None)
    cache.encode(["abc"])
    cache.encode(["abc", "d"])
    report = LoadReport()
    fill_load(report, memory, num_restarted=2)
    assert (report.recipe.encoded_chars_total, report.recipe.cached_chars_total) == (7, 3)
    assert report.recipe.token_cache_bytes == memory.num_bytes > 0


def test_the_text_used_longest_ago_goes_first() -> None:
    inner = CountingEncoder()
    cache = CachingEncoder(inner, TokenCache(64_000), None)
    first, *others = (letter * 1000 for letter in "abcdefghijklmnopqrst")
    for other in others:
        cache.encode([first, other])
    inner.asked.clear()
    cache.encode([others[0], first])
    assert inner.asked == [others[0]]


@given(st.lists(st.lists(st.text("ab\u6f22", max_size=300)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_the_cache_keeps_its_bound_and_changes_no_ids(batches: list[list[str]]) -> None:
    memory, plain = TokenCache(8000), CountingEncoder()
    cache = CachingEncoder(CountingEncoder(), memory, None)
    for batch in batches:
        assert ids_of(cache, *batch) == [ids.tolist() for ids in plain.encode(batch)]
        assert 0 <= memory.num_bytes <= 8000
    assert (memory.num_bytes == 0) == (not any(batches))


def test_long_texts_with_equal_samples_are_told_apart() -> None:
    cache = CachingEncoder(CountingEncoder(), TokenCache(1 << 20), None)
    texts = ["a" * 5000, "a" * 1000 + "b" + "a" * 3999, "a" * 5000]
    for text in texts:
        assert ids_of(cache, text) == [list(map(ord, text))]
    assert ids_of(cache, *texts) == [list(map(ord, text)) for text in texts]


def test_a_text_too_large_for_the_cache_leaves_the_others_in_it() -> None:
    inner = CountingEncoder()
    cache = CachingEncoder(inner, TokenCache(8000), None)
    assert ids_of(cache, "small", "x" * 9000, "small")[1] == [120] * 9000
    inner.asked.clear()
    cache.encode(["small"])
    assert inner.asked == []


def test_nobody_can_change_what_the_cache_returns() -> None:
    cache = CachingEncoder(CountingEncoder(), TokenCache(8000), None)
    cache.encode(["ab"])
    (ids,) = cache.encode(["ab"])
    assert not ids.flags.writeable


def test_threads_share_the_cache() -> None:
    memory = TokenCache(20_000)
    cache = CachingEncoder(CountingEncoder(), memory, None)

    def work(seed: int) -> bool:
        texts = [str((seed + n) % 50) * 50 for n in range(200)]
        return all(ids_of(cache, text) == [list(map(ord, text))] for text in texts)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(0, 80, 5)))
    assert memory.num_bytes <= 20_000


SEGMENTS = st.lists(
    st.text("ab <|im_end|>\n\u6f22", max_size=8)
    | st.integers(0, 2).map(lambda n: Special(n, TOKENIZER["added_tokens"][n]["content"]))
    | st.integers(0, 9).map(lambda n: Image(n, 2, "<|im_end|>"))
)


@given(SEGMENTS)
@settings(max_examples=200, deadline=None)
def test_only_special_tokens_separate_texts(segments: list[Segment]) -> None:
    """Ids = id of each special token, and the ids of each whole text between two of them."""
    uncached = CachingEncoder(REFERENCE, TokenCache(0), None)
    expected, text = [], ""
    for segment in [*segments, None]:
        if isinstance(segment, str):
            text += segment
            continue
        expected += REFERENCE.encode([text])[0].tolist() + ([segment.token_id] if segment else [])
        text = ""
    assert encode_segments(segments, uncached).tolist() == expected


def test_text_that_spells_a_special_token_is_text() -> None:
    encoder = make_text_encoder(TOKENIZER, prefer_fast=True, cache=TokenCache(0))
    ids = encode_segments(["<|im_end|>", Special(2, "<|im_end|>"), "|>"], encoder)
    assert (ids == 2).sum() == 1


def test_a_text_the_fast_encoder_fails_on_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = CountingEncoder()
    fast = FastEncoder(TOKENIZER, reference)
    library = fast._tokenizer

    class FailsOnBlanks:
        def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
            if "  " in texts:
                raise ValueError("match limit exceeded")
            flat: tuple[bytes, bytes] = library.encode_batch_flat(texts)
            return flat

    monkeypatch.setattr(fast, "_tokenizer", FailsOnBlanks())
    encoded = [ids.tolist() for ids in fast.encode(["Hello", "  ", "fox"])]
    assert reference.asked == ["  "]
    assert encoded[1] == [32, 32]
    assert encoded[::2] == [ids.tolist() for ids in REFERENCE.encode(["Hello", "fox"])]


def test_the_probes_spell_this_tokenizers_own_tokens() -> None:
    probes = "".join(probe_texts(TOKENIZER))
    assert all(entry["content"] in probes for entry in TOKENIZER["added_tokens"])
    assert probe_texts(TOKENIZER) == probe_texts(TOKENIZER)
    assert "quick" in probes


def test_long_texts_are_cut_and_cached_by_their_beginning() -> None:
    memory = TokenCache(1 << 24)
    encoder = make_text_encoder(TOKENIZER, prefer_fast=True, cache=memory)
    text = "The quick brown fox. " * 20_000
    for longer in (text, text + "And a dog."):
        (ids,) = encoder.encode([longer])
        assert ids.tolist() == REFERENCE.encode([longer])[0].tolist()
    assert memory.counts.hit_chars > 0.8 * len(text)
