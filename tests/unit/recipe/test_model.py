"""Reading model directories and choosing an encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.encodings import UnknownEncoding
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.model_files import BadModelDirectory
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens import select
from rorqual_recipe.tokens.cache import TokenCache
from rorqual_recipe.tokens.encoder import FastEncoder, HuggingFaceEncoder
from rorqual_recipe.tokens.select import make_text_encoder


@pytest.fixture
def copied(model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def load(directory: Path) -> ServedModel:
    return load_served_model(RecipeSettings(model_dir=directory))


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("name", ["rorqual.json", "config.json", "tokenizer.json"])
def test_a_broken_file_is_named(copied: Path, name: str) -> None:
    (copied / name).write_text("{")
    with pytest.raises(BadModelDirectory, match=name):
        load(copied)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(BadModelDirectory, match=f"{name}.*missing"):
        load(copied)


def test_a_directory_as_transformers_saves_it_is_served_under_its_name(copied: Path) -> None:
    """No manifest, and the chat template in a file of its own."""
    (copied / "rorqual.json").unlink()
    config = json.loads((copied / "tokenizer_config.json").read_text())
    (copied / "chat_template.jinja").write_text(config.pop("chat_template"))
    (copied / "tokenizer_config.json").write_text(json.dumps(config))
    assert load(copied).model_id == copied.name


def test_the_makers_sampling_is_the_default(copied: Path) -> None:
    (copied / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    assert load(copied).defaults.temperature == 0.6
    assert load(copied).defaults.top_k == 20


def test_the_limits_and_vision_come_from_the_config(copied: Path) -> None:
    assert not load(copied).has_vision
    edit(copied / "config.json", vision_config={}, max_position_embeddings=99)
    assert load(copied).has_vision
    assert load(copied).max_context_tokens == 99
    edit(copied / "config.json", max_position_embeddings=None)
    with pytest.raises(BadModelDirectory, match="max_position_embeddings"):
        load(copied)


def test_an_unknown_prompt_encoding_stops_the_start(model_dir: Path) -> None:
    with pytest.raises(UnknownEncoding, match="chat-template"):
        load_served_model(RecipeSettings(model_dir=model_dir, prompt_encoding="nope"))


def test_a_vocabulary_that_leaks_special_tokens_is_refused(copied: Path) -> None:
    tokenizer = json.loads((copied / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = None
    tokenizer["model"]["ignore_merges"] = True
    (copied / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadModelDirectory, match="special token"):
        load(copied)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_the_fast_encoder_gives_the_references_ids(model: ServedModel, model_dir, text) -> None:
    reference = HuggingFaceEncoder(json.loads((model_dir / "tokenizer.json").read_text()))
    assert model.encoder.name == "fastokens"
    texts = [text, f"{text}!", ""]
    pairs = zip(model.encoder.encode(texts), reference.encode(texts), strict=True)
    assert all(list(ours) == list(theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("blank", [" ", "\n", "\t \n"])
def test_a_text_that_the_fast_encoder_fails_on_is_encoded(model: ServedModel, blank: str) -> None:
    text = blank * (1_200_000 // len(blank))
    (ids,) = model.encoder.encode([text])
    assert b"".join(map(model.vocabulary.bytes_of, ids.tolist())) == text.encode()


def chosen(tokenizer: dict[str, object], *, prefer_fast: bool) -> str:
    return make_text_encoder(tokenizer, prefer_fast=prefer_fast, cache=TokenCache(0)).name


def test_an_encoder_that_differs_is_not_used(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text())

    class Wrong(FastEncoder):
        def encode(self, texts):
            return [ids[::-1] for ids in super().encode(texts)]

    monkeypatch.setattr(select, "FastEncoder", Wrong)
    assert chosen(tokenizer, prefer_fast=True) == "tokenizers"
    monkeypatch.setattr(select, "FastEncoder", lambda *_: 1 / 0)
    assert chosen(tokenizer, prefer_fast=True) == "tokenizers"
    assert chosen(tokenizer, prefer_fast=False) == "tokenizers"
