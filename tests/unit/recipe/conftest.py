"""A small model with a real byte-level tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rorqual_recipe.encode import EncodedRequest, encode_request
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.settings import RecipeSettings

from tests.support.chat_model_dir import MODEL_ID, make_chat_model_dir

Encode = Callable[..., EncodedRequest]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def model(model_dir: Path) -> ServedModel:
    return load_served_model(RecipeSettings(model_dir=model_dir))


@pytest.fixture(scope="session")
def encode(model: ServedModel) -> Encode:
    """Encodes a body given as fields; model and one message are filled in."""
    import json

    def run(**fields: object) -> EncodedRequest:
        body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello"}], **fields}
        return encode_request(
            json.dumps(body).encode(),
            PROTOCOLS["chat_completions"],
            model,
            default_max_tokens=2048,
            limits=ParseLimits(max_choices=8, has_vision=model.has_vision),
        )

    return run
