"""A constrained output is complete within its budget, whatever the model draws."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgrammar
from rorqual_engine import closing
from rorqual_engine.closing import MAX_WAY_TOKENS, ClosingVocabulary, find_way
from rorqual_engine.grammar import GrammarState, load_tokenizer_info
from tokenizers import pre_tokenizers

from tests.support.tiny_model_dir import EOS_TOKEN_ID, VOCAB_SIZE, make_model_dir

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "score": {"type": "number"},
        "kind": {"enum": ["alpha", "beta"]},
        "at": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "pattern": "^[a-z ]{5,}$"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
        },
    },
    "required": ["name", "age", "tags", "score", "kind", "at"],
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["below"],
        }
    },
}
ENDLESS = {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]}
"""No finite text satisfies it."""


class Vocabulary:
    """One tokenizer, shared by the tests of this file."""

    def __init__(self, model_dir: Path) -> None:
        self.info = load_tokenizer_info(model_dir, VOCAB_SIZE, [EOS_TOKEN_ID])
        self.texts = list(self.info.decoded_vocab)
        self.closing = ClosingVocabulary(self.info)
        self.compiler = xgrammar.GrammarCompiler(self.info, max_threads=1)

    def schema(self, schema: dict[str, Any]) -> xgrammar.CompiledGrammar:
        return self.compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)

    def way(self, grammar: xgrammar.CompiledGrammar) -> list[int]:
        way = find_way(xgrammar.GrammarMatcher(grammar), self.closing)
        assert way is not None
        return way


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return Vocabulary(make_model_dir(tmp_path_factory.mktemp("model")))


def ramble(
    vocabulary: Vocabulary, grammar: xgrammar.CompiledGrammar, budget: int, seed: int
) -> str:
    """What a model writes that never wants to stop: random allowed tokens, the end one avoided."""
    draw = np.random.default_rng(seed)
    state = GrammarState(grammar, vocabulary.closing)
    mask = np.empty((1, -(-VOCAB_SIZE // 32)), np.int32)
    output: list[int] = []
    while len(output) < budget and not state.is_finished:
        state.fill_mask(mask, 0)  # type: ignore[arg-type]
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
        allowed = np.flatnonzero(bits)
        wanted = allowed[allowed != EOS_TOKEN_ID]
        drawn = int(draw.choice(wanted if len(wanted) else allowed))
        token_id = state.admit(drawn, budget - len(output) - 1)
        assert state.accept(token_id)
        output.append(token_id)
    return b"".join(vocabulary.texts[i] for i in output if i != EOS_TOKEN_ID).decode(
        errors="replace"
    )


@pytest.mark.parametrize("schema", [PERSON, TREE, {"type": "object"}, {"type": "array"}, {}])
def test_json_is_complete_at_any_budget_that_can_hold_it(
    vocabulary: Vocabulary, schema: dict[str, Any]
) -> None:
    grammar = vocabulary.schema(schema)
    shortest = len(vocabulary.way(grammar))
    for seed in range(25):
        text = ramble(vocabulary, grammar, shortest + 7 * seed, seed)
        json.loads(text)


def test_a_pattern_is_completed_where_its_end_is_near(vocabulary: Vocabulary) -> None:
    grammar = vocabulary.compiler.compile_regex(r"[a-z]{3}(-[a-z]+)*")
    for seed in range(10):
        assert re.fullmatch(r"[a-z]{3}(-[a-z]+)*", ramble(vocabulary, grammar, 12 + seed, seed))


def test_with_room_left_nothing_is_changed(vocabulary: Vocabulary) -> None:
    state = GrammarState(vocabulary.schema(PERSON), vocabulary.closing)
    drawn = vocabulary.texts.index(b"{")
    assert state.admit(drawn, MAX_WAY_TOKENS) == drawn
    assert state.admit(drawn, MAX_WAY_TOKENS - 1) == drawn


def test_a_budget_that_can_hold_no_answer_changes_nothing(vocabulary: Vocabulary) -> None:
    state = GrammarState(vocabulary.schema(PERSON), vocabulary.closing)
    drawn = vocabulary.texts.index(b"{")
    assert state.admit(drawn, 3) == drawn


def test_a_grammar_without_an_end_is_soon_given_up(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = vocabulary.schema(ENDLESS)
    assert find_way(xgrammar.GrammarMatcher(grammar), vocabulary.closing) is None
    looks: list[int] = []

    def counted(matcher: Any, words: ClosingVocabulary, max_tokens: int) -> list[int] | None:
        looks.append(max_tokens)
        return find_way(matcher, words, max_tokens)

    monkeypatch.setattr(closing, "find_way", counted)
    assert ramble(vocabulary, grammar, 200, seed=1).startswith('{"c": {"c": ')
    assert len(looks) <= 20


def test_without_a_vocabulary_every_token_is_admitted(vocabulary: Vocabulary) -> None:
    state = GrammarState(vocabulary.schema(PERSON))
    assert state.admit(123, 0) == 123


def test_free_text_ends_at_its_mark() -> None:
    """Thinking before the answer, and a parameter that is text as it is."""
    marks = {"｜DSML｜": 300, "</think>": 301, "</": 302}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<end>", *alphabet, *("" for _ in range(300 - 1 - len(alphabet))), *marks]
    info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    vocabulary = ClosingVocabulary(info)
    for elements in (
        [
            {"type": "any_tokens", "exclude_tokens": [301]},
            {"type": "token", "token": 301},
            {"type": "json_schema", "json_schema": PERSON},
        ],
        [
            {"type": "any_text", "excludes": ["｜DSML｜"]},
            {"type": "const_string", "value": "</"},
            {"type": "token", "token": 300},
            {"type": "const_string", "value": "parameter>"},
        ],
    ):
        tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
        grammar = compiler.compile_structural_tag(tag)
        state = GrammarState(grammar, vocabulary)
        shortest = find_way(xgrammar.GrammarMatcher(grammar), vocabulary)
        assert shortest is not None
        budget = len(shortest) + 20
        for num_done in range(budget):
            token_id = state.admit(tokens.index("x"), budget - num_done - 1)
            if not state.accept(token_id):
                break
        way = find_way(state._matcher.fork(), vocabulary)
        assert way is not None
        assert num_done + len(way) <= budget
