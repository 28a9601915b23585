"""Tiny random models, saved by transformers and loaded by the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from rorqual_engine.models import CausalModel, load_model

from tests.support.tiny_llama import save_tiny_llama


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(directory)
    return directory


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> CausalModel:
    """bf16 on the CPU: what runs on the compiled kernels."""
    return load_model(tiny_dir)
