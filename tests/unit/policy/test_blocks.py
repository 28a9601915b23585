"""Block keys name a prefix and nothing else."""

import ctypes
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_policy import BLOCK_TOKENS, ImageSpan, block_keys, extend_keys, root_key
from rorqual_policy.blocks import content_key

GOLDEN = ["e4e51c829f131fd351867009401d3f25", "3cff955630dbb21fb341a4f2739ba973"]
IMAGE_GOLDEN = ["e0880b0c3e52ab1fd86399875a0764de", "c4410b5bbc164df99482418617f36eb5"]
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=BLOCK_TOKENS * 3 + 5)


def keys_of(tokens, fingerprint="model", namespace="tenant"):
    return block_keys(tokens, fingerprint=fingerprint, namespace=namespace)


@given(TOKENS)
def test_only_full_blocks_have_keys_of_16_bytes(tokens):
    keys = keys_of(tokens)
    assert len(keys) == len(tokens) // BLOCK_TOKENS
    assert all(len(key) == 16 for key in keys)


@given(TOKENS, st.integers(0, 400))
def test_a_prefix_has_a_prefix_of_the_keys(tokens, cut):
    assert keys_of(tokens[:cut]) == keys_of(tokens)[: len(tokens[:cut]) // BLOCK_TOKENS]


@given(st.lists(st.integers(0, 9), min_size=300, max_size=400), st.integers(0, 2))
def test_extending_block_by_block_equals_hashing_at_once(tokens, num_first_blocks):
    cut = num_first_blocks * BLOCK_TOKENS
    first = keys_of(tokens[:cut])
    parent = first[-1] if first else root_key(fingerprint="model", namespace="tenant")
    assert first + extend_keys(parent, tokens[cut:]) == keys_of(tokens)


@given(st.integers(0, 3 * BLOCK_TOKENS - 1))
def test_one_changed_token_changes_its_block_and_all_after(position):
    tokens = list(range(3 * BLOCK_TOKENS))
    changed = [*tokens[:position], 10**6, *tokens[position + 1 :]]
    before, after = keys_of(tokens), keys_of(changed)
    block = position // BLOCK_TOKENS
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after)


def test_container_type_does_not_matter():
    tokens = list(range(1000, 1000 + 2 * BLOCK_TOKENS))
    forms = [
        array("i", tokens),
        array("q", tokens),
        np.array(tokens, dtype=np.int32),
        np.array(tokens, dtype=np.int64),
        np.array(tokens + tokens, dtype=np.int32)[: len(tokens)],
        np.repeat(np.array(tokens, dtype=np.int32), 2)[::2],
        memoryview(array("i", tokens)),
        (ctypes.c_int32 * len(tokens))(*tokens),
        tuple(tokens),
    ]
    assert all(keys_of(form) == keys_of(tokens) for form in forms)


def test_fields_cannot_run_into_each_other():
    tokens = [7] * BLOCK_TOKENS
    pairs = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), ("aN\x01\x00\x00\x00b", "c")]
    assert len({keys_of(tokens, *pair)[0] for pair in pairs}) == len(pairs)


NAMES = st.text(max_size=12)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), unique=True, max_size=12))
def test_no_two_of_model_namespace_and_adapter_share_a_root(names):
    roots = {
        root_key(fingerprint=fingerprint, namespace=namespace, adapter=adapter)
        for fingerprint, namespace, adapter in names
    }
    assert len(roots) == len(names)


def test_names_can_not_pass_for_each_other():
    """Salt for adapter, model for namespace, one tagged field inside another, none for empty."""
    forged = "A\x01\x00\x00\x00x"
    triples = [
        ("m", "salt", ""),
        ("m", "", "salt"),
        ("m", None, "salt"),
        ("m", None, ""),
        ("m", "", ""),
        ("salt", "m", ""),
        ("m", "salt" + forged, ""),
        ("m", "salt", "x"),
        ("mN\x04\x00\x00\x00salt", None, ""),
        ("m\x00", "salt", ""),
        ("m", "\u00e9", ""),
        ("m", "e\u0301", ""),
    ]
    roots = {root_key(fingerprint=f, namespace=n, adapter=a) for f, n, a in triples}
    assert len(roots) == len(triples)


def test_lists_end_where_they_end():
    """Tokens of the next block, images of the next block: nothing moves over a boundary."""
    ids = list(range(2 * BLOCK_TOKENS))
    first, second = keys_of(ids)
    assert keys_of(ids[:BLOCK_TOKENS]) == [first]
    assert keys_of(ids[BLOCK_TOKENS:]) != [second]
    swapped = keys_of(ids[BLOCK_TOKENS:] + ids[:BLOCK_TOKENS])
    assert not {first, second} & set(swapped)
    digest = b"d" * 32
    whole = [ImageSpan(100, 60, digest)]
    halves = [ImageSpan(100, 28, digest), ImageSpan(128, 32, digest)]
    assert not set(image_keys(whole, ids)) & set(image_keys(halves, ids))
    glued = [ImageSpan(100, 28, digest[:16]), ImageSpan(128, 32, digest[16:])]
    assert len({image_keys(form, ids)[0] for form in (whole, halves, glued)}) == 3


def test_tokens_can_not_pass_for_an_image_nor_a_root_for_a_block():
    ids = [7] * BLOCK_TOKENS
    spans = [[ImageSpan(0, 20, b"x" * size)] for size in (0, 1, 2, 31, 32, 33)]
    assert len({image_keys(form, ids)[0] for form in [*spans, []]}) == len(spans) + 1
    assert keys_of(ids)[0] != root_key(fingerprint="model", namespace="tenant")


def test_a_content_key_is_the_same_for_all_and_no_block_goes_by_it():
    ids = list(range(3 * BLOCK_TOKENS))
    content = content_key(ids, fingerprint="model")
    assert content == content_key(ids[:BLOCK_TOKENS], fingerprint="model")
    assert content != content_key(ids, fingerprint="other")
    assert content != content_key(ids, fingerprint="model", adapter="a")
    assert content not in keys_of(ids) + keys_of(ids, namespace="")
    assert content_key(ids[:100], fingerprint="model") == b""


def test_layout_is_pinned():
    keys = keys_of(range(2 * BLOCK_TOKENS))
    assert [key.hex() for key in keys] == GOLDEN


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="16 bytes"):
        extend_keys(b"short", [])
    with pytest.raises(OverflowError):
        keys_of([2**31] * BLOCK_TOKENS)


IMAGE_IDS = [7] * 500
SPANS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 200), st.binary(min_size=4)), max_size=4
)


def spans_of(drawn):
    spans, at = [], 0
    for gap, num_tokens, digest in drawn:
        spans.append(ImageSpan(at + gap, num_tokens, digest))
        at = spans[-1].end
    return spans


def image_keys(images, tokens=IMAGE_IDS):
    return block_keys(tokens, fingerprint="model", namespace="tenant", images=images)


def test_without_images_nothing_changes():
    assert [key.hex() for key in image_keys([], range(2 * BLOCK_TOKENS))] == GOLDEN
    late = [ImageSpan(2 * BLOCK_TOKENS, 20, b"digest")]
    assert [key.hex() for key in image_keys(late, range(2 * BLOCK_TOKENS))] == GOLDEN


def test_the_layout_with_images_is_pinned():
    keys = image_keys([ImageSpan(100, 60, bytes(range(32)))], range(2 * BLOCK_TOKENS))
    assert [key.hex() for key in keys] == IMAGE_GOLDEN


@given(SPANS, st.data())
def test_another_image_changes_the_blocks_it_stands_in_and_all_after(drawn, data):
    spans = spans_of(drawn)
    if not spans:
        return
    which = data.draw(st.integers(0, len(spans) - 1))
    old = spans[which]
    other = ImageSpan(old.start, old.num_tokens, old.digest + b"!")
    before = image_keys(spans)
    after = image_keys([*spans[:which], other, *spans[which + 1 :]])
    first = old.start // BLOCK_TOKENS
    assert before[:first] == after[:first]
    assert not set(before[first:]) & set(after)


@given(SPANS, st.integers(0, 3))
def test_images_are_seen_from_any_block(drawn, num_first_blocks):
    spans = spans_of(drawn)
    cut = num_first_blocks * BLOCK_TOKENS
    first = image_keys(spans, IMAGE_IDS[:cut])
    parent = first[-1] if first else root_key(fingerprint="model", namespace="tenant")
    rest = [span.seen_from(cut) for span in spans]
    assert first + extend_keys(parent, IMAGE_IDS[cut:], rest) == image_keys(spans)


def test_one_image_of_two_sizes_and_two_images_differ():
    one, other = b"a" * 32, b"b" * 32
    forms = [
        [ImageSpan(0, 20, one)],
        [ImageSpan(0, 40, one)],
        [ImageSpan(1, 20, one)],
        [ImageSpan(0, 20, one), ImageSpan(20, 20, one)],
        [ImageSpan(0, 20, one), ImageSpan(20, 20, other)],
        [ImageSpan(0, 20, other), ImageSpan(20, 20, one)],
        [],
    ]
    assert len({image_keys(form)[0] for form in forms}) == len(forms)
