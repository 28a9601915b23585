"""`random-v41` is a whole model directory, served like a downloaded one, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rorqual_engine.manifest import read_manifest
from rorqual_engine.models import load_model
from rorqual_engine.prepare import prepare_model
from rorqual_engine.prepare.random_tokenizer import IMAGE, NOISE
from rorqual_recipe.conversation import Conversation, Message, Role, TextPart
from rorqual_recipe.encodings.deepseek import DeepSeekEncoding
from rorqual_recipe.model import load_served_model
from rorqual_recipe.profile import read_profile
from rorqual_recipe.settings import RecipeSettings
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model("random-v41", tmp_path_factory.mktemp("models") / "random-v41")


def test_the_same_every_time(directory: Path, tmp_path: Path) -> None:
    again = read_manifest(prepare_model("random-v41", tmp_path / "again"))
    first = read_manifest(directory)
    assert first is not None and again is not None
    assert (first.id, first.fingerprint) == ("random-v41", again.fingerprint)


def test_ids_of_the_configuration_are_special_tokens(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.id_to_token(config["image_token_id"]) == IMAGE
    assert tokenizer.id_to_token(config["dspark_config"]["noise_id"]) == NOISE
    assert tokenizer.id_to_token(config["bos_token_id"]).startswith("<｜begin")
    assert tokenizer.id_to_token(config["eos_token_id"]).startswith("<｜end")


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of France?\n",
        "深度求索 naïve 👩‍👩‍👧 12345",
        "def f(x):\n\treturn x\r\n",
    ],
)
def test_any_text_comes_back(directory: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_tokenizer_has_learned_words(directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "The first question of the people was about the water of the river."
    assert len(tokenizer.encode(text).ids) <= 16


def test_it_is_prompted_by_its_own_profile(directory: Path) -> None:
    profile = read_profile(directory)
    assert profile is not None and profile.encoding == "deepseek-v4.1"
    served = load_served_model(RecipeSettings(model_dir=directory))
    assert isinstance(served.encoding, DeepSeekEncoding) and served.has_vision
    hello = Message(Role.USER, (TextPart("hello there"),))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    prompt = tokenizer.decode(
        list(served.encode(Conversation((hello,)))), skip_special_tokens=False
    )
    assert "<｜User｜>hello there<｜Assistant｜>" in prompt


def test_the_engine_loads_it(directory: Path) -> None:
    model = load_model(directory)
    assert (model.vocab_size, model.eos_token_ids) == (4096, (1,))
