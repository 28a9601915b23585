"""Cuts of long texts: the pieces give the ids of the whole."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.tokens.cuts import SPACE, CutRule, find_cut_rule
from rorqual_recipe.tokens.encoder import HuggingFaceEncoder
from rorqual_recipe.tokens.layers import PieceEncoder
from rorqual_recipe.tokens.patterns import (
    DEEPSEEK,
    DEEPSEEK_CJK,
    DEEPSEEK_DIGITS,
    GPT2,
    PATTERNS,
    with_known_spellings,
)
from tokenizers import Tokenizer

from tests.support.chat_model_dir import make_chat_tokenizer

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2_STAGE = {**BYTES, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
# One or more of every kind of character that a known pattern tells apart.
ALPHABET = "sA1 \n\r\t.'/\u00e9\u0301\u6f22\uff0c\x00"


def split(pattern: str, **changes: object) -> dict[str, Any]:
    isolated = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return {**isolated, "invert": False, **changes}


def sequence(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(stages)}


DEEPSEEK_STAGES = (split(DEEPSEEK_DIGITS), split(DEEPSEEK_CJK), split(DEEPSEEK))
KNOWN = {
    **{f"pattern {n}": sequence(split(p), BYTES) for n, p in enumerate(PATTERNS)},
    "GPT-2": GPT2_STAGE,
    "digits, then GPT-2": sequence(DIGITS, GPT2_STAGE),
    "DeepSeek": sequence(*DEEPSEEK_STAGES, BYTES),
}
UNKNOWN = {
    "none": None,
    "another pattern": split(r"\s+|\w+"),
    "a pattern that drops what it doesn't match": split(GPT2, behavior="Removed", invert=True),
    "a space before each piece": {**GPT2_STAGE, "add_prefix_space": True},
    "an unknown stage": sequence({"type": "Punctuation", "behavior": "Isolated"}, GPT2_STAGE),
    "bytes before the pattern": sequence(BYTES, split(GPT2)),
    "no pattern": sequence(DIGITS, BYTES),
}


def tokenizer_json(pre_tokenizer: dict[str, Any] | None, **changes: object) -> dict[str, Any]:
    return {**json.loads(make_chat_tokenizer().to_str()), "pre_tokenizer": pre_tokenizer, **changes}


def known_rule(pre_tokenizer: dict[str, Any]) -> CutRule:
    rule = find_cut_rule(tokenizer_json(pre_tokenizer))
    assert rule is not None
    return rule


@pytest.mark.parametrize("name", KNOWN)
def test_no_short_text_is_cut_inside_a_pre_token(name: str) -> None:
    """Every text of four characters, one of each kind, at each of its cuts."""
    rule = known_rule(KNOWN[name])
    stages = Tokenizer.from_str(json.dumps(tokenizer_json(KNOWN[name]))).pre_tokenizer

    @cache
    def pre_tokens(text: str) -> list[str]:
        return [piece for piece, _ in stages.pre_tokenize_str(text)] if text else []

    num_cuts = 0
    for characters in product(ALPHABET, repeat=4):
        text = "".join(characters)
        for match in rule.cut.finditer(text):
            num_cuts += 1
            before, behind = text[: match.start()], text[match.start() :]
            assert pre_tokens(before) + pre_tokens(behind) == pre_tokens(text), (before, behind)
    assert num_cuts > 1000


@pytest.fixture(scope="module", params=["DeepSeek", "digits, then GPT-2"])
def encoders(request: pytest.FixtureRequest) -> tuple[PieceEncoder, HuggingFaceEncoder]:
    tokenizer = tokenizer_json(KNOWN[request.param], normalizer={"type": "NFC"})
    reference = HuggingFaceEncoder(tokenizer)
    rule = find_cut_rule(tokenizer)
    assert rule is not None
    return PieceEncoder(reference, rule), reference


@given(st.lists(st.text(ALPHABET + "aez“”🇫🇷\u2028\u0338=>", max_size=40) | st.text(max_size=20)))
@settings(max_examples=150, deadline=None)
def test_pieces_give_the_ids_of_the_whole(encoders, texts: list[str]) -> None:
    cutting, reference = encoders
    pairs = zip(cutting.encode(texts), reference.encode(texts), strict=True)
    assert all(ours.tolist() == theirs.tolist() for ours, theirs in pairs)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_pre_tokeniser_is_not_cut(name: str) -> None:
    assert find_cut_rule(tokenizer_json(UNKNOWN[name])) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}},
        {"model": {"type": "Unigram", "vocab": []}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.1}},
    ],
)
def test_an_unknown_normaliser_or_model_is_not_cut(changes: dict[str, Any]) -> None:
    assert find_cut_rule(tokenizer_json(GPT2_STAGE)) is not None
    assert find_cut_rule(tokenizer_json(GPT2_STAGE, **changes)) is None


@given(st.text(" ab\n", min_size=1, max_size=300), st.text(" ab\n", max_size=50))
def test_texts_that_begin_alike_share_their_first_pieces(text: str, more: str) -> None:
    """What keeps the cache useful while one text grows."""
    rule = known_rule(GPT2_STAGE)
    pieces, longer = rule.pieces(text, 16), rule.pieces(text + more, 16)
    assert "".join(pieces) == text
    assert all(len(piece) >= 16 for piece in pieces[:-1])
    assert longer[: len(pieces) - 1] == pieces[:-1]


def test_a_text_with_few_cuts_is_searched_in_part_and_still_cut() -> None:
    class Counted:
        num_chars = 0

        def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
            self.num_chars += end - start
            return re.compile(SPACE).search(text, start, end)

    counted = Counted()
    text = "1" * 1_000_000 + " a" * 50_000
    pieces = CutRule(counted).pieces(text, 16_000)  # type: ignore[arg-type]
    assert "".join(pieces) == text
    assert counted.num_chars < len(text) / 4
    assert len(pieces) > 5


@pytest.mark.parametrize("spelling", ["escaped", "as they are", "apostrophe escaped"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_another_spelling_of_a_pattern_is_the_same_pattern(pattern: str, spelling: str) -> None:
    """Cuts are found, and what fastokens is given splits text as the file's own spelling does."""
    literal = pattern.replace(r"\r\n", "\r\n")
    respelled = {
        "escaped": pattern,
        "as they are": literal,
        "apostrophe escaped": pattern.replace("'", r"\'"),
    }
    stage = split(respelled[spelling])
    assert known_rule(sequence(stage, BYTES)) == known_rule(sequence(split(pattern), BYTES))
    own, known = (
        Tokenizer.from_str(json.dumps(tokenizer_json(pre))).pre_tokenizer
        for pre in (stage, with_known_spellings(stage))
    )
    for characters in product("sA1 \n'/\u00e9", repeat=4):
        text = "".join(characters)
        assert own.pre_tokenize_str(text) == known.pre_tokenize_str(text)
