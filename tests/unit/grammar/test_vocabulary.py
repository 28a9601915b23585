"""Grammar and engine take the same tokens for the end: a compiled grammar is bound to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rorqual_engine.models.registry import load_model
from rorqual_grammar.vocabulary import read_vocabulary

from tests.support.tiny_llama import save_tiny_llama
from tests.support.tiny_model_dir import make_tokenizer


@pytest.mark.parametrize("generation_eos", [None, 3, [3, 4]])
def test_end_tokens_are_those_of_the_engine(tmp_path: Path, generation_eos: object) -> None:
    save_tiny_llama(tmp_path, eos_token_id=2)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": generation_eos}))
    ours = read_vocabulary(tmp_path).stop_token_ids
    assert tuple(ours) == load_model(tmp_path).eos_token_ids
