"""A tiny random Llama, and what it says without any service in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams

from tests.support.tiny_llama import save_tiny_llama
from tests.support.tiny_model_dir import EOS_TOKEN_ID, make_tokenizer


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(directory, eos_token_id=EOS_TOKEN_ID, max_position_embeddings=4096)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="session")
def tiny_model(tiny_dir: Path) -> CausalModel:
    return load_model(tiny_dir)


Generate = Callable[..., list[int]]


@pytest.fixture(scope="session")
def bare(tiny_model: CausalModel) -> Generate:
    """Output of the engine alone: `bare(token_ids, num_tokens, **sampling)`."""
    engine = BareEngine(tiny_model, num_pages=64)

    def generate(token_ids: Sequence[int], num_tokens: int, **sampling: Any) -> list[int]:
        fields = {"ignore_eos": True, **sampling}
        return engine.generate([token_ids], GenerationParams(num_tokens, **fields))[0]

    return generate


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    """Token ids without the end token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (num_tokens,), generator=generator).tolist()
