"""A grammar makes the default model give valid output, whatever it would have said."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import xgrammar
from rorqual_engine.errors import GrammarMismatch
from rorqual_engine.grammar import GrammarState, load_tokenizer_info, new_bitmask
from rorqual_engine.models import CausalModel
from rorqual_engine.runner import BareEngine, GenerationParams
from tokenizers import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["whale", "dolphin"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def info(model: CausalModel, model_dir: Path) -> xgrammar.TokenizerInfo:
    return load_tokenizer_info(model_dir, model.vocab_size, model.eos_token_ids)


@pytest.fixture(scope="module")
def serialized(info: xgrammar.TokenizerInfo) -> bytes:
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    compiled = compiler.compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    text: str = compiled.serialize_json()
    return text.encode()


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_every_output_satisfies_the_schema(
    model: CausalModel,
    tokenizer: Tokenizer,
    info: xgrammar.TokenizerInfo,
    serialized: bytes,
    temperature: float,
) -> None:
    prompt = tokenizer.encode("<|im_start|>user\nDescribe a whale.<|im_end|>\n").ids
    params = [GenerationParams(96, temperature, seed=seed) for seed in range(2)]
    grammars = [GrammarState.from_serialized(serialized, info) for _ in params]
    outputs = BareEngine(model, num_pages=16).generate([prompt] * len(params), params, grammars)
    for output, state in zip(outputs, grammars, strict=True):
        assert state.is_finished
        assert output[-1] in model.eos_token_ids
        jsonschema.validate(json.loads(tokenizer.decode(output)), SCHEMA)


def test_forbidden_token_changes_nothing(
    info: xgrammar.TokenizerInfo, serialized: bytes, tokenizer: Tokenizer, model: CausalModel
) -> None:
    state = GrammarState.from_serialized(serialized, info)
    before, after = new_bitmask(2, model.vocab_size), new_bitmask(2, model.vocab_size)
    state.fill_mask(before, 1)
    assert not state.accept(tokenizer.encode("whale").ids[0])
    assert state.accept(tokenizer.encode("{").ids[0])
    assert not state.is_finished
    state.fill_mask(after, 1)
    assert (before[1] != after[1]).any()
    assert (before[0] == -1).all()


def test_grammar_of_another_vocabulary_is_refused(
    model: CausalModel, model_dir: Path, serialized: bytes
) -> None:
    other = load_tokenizer_info(model_dir, model.vocab_size + 64, model.eos_token_ids)
    with pytest.raises(GrammarMismatch):
        GrammarState.from_serialized(serialized, other)


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xfe", b"{}", b'{"a": 1}'])
def test_damaged_grammar_is_refused(info: xgrammar.TokenizerInfo, damaged: bytes) -> None:
    with pytest.raises(GrammarMismatch):
        GrammarState.from_serialized(damaged, info)
