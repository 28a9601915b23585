"""A tiny random Llama, and what it says without any service in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.sampling import SamplingState, sample

from tests.support.tiny_llama import save_tiny_llama
from tests.support.tiny_model_dir import make_tokenizer

EOS_TOKEN_ID = 2


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
    """Tokens of the bare model: one prompt, one pass, then token by token."""
    return lambda token_ids, num_tokens, **fields: bare_tokens(
        tiny_model, token_ids, num_tokens, **fields
    )


@torch.inference_mode()
def bare_tokens(
    model: CausalModel, token_ids: Sequence[int], num_tokens: int, **fields: object
) -> list[int]:
    """Output of the engine alone, without stopping at end tokens."""
    cache = model.new_cache(model.kv_layout.num_pages(len(token_ids) + num_tokens))
    with cache.allocate(cache.num_pages) as lease:
        output: list[int] = []
        rows, start = list(token_ids), 0
        while len(output) < num_tokens:
            logits = model.forward([SequenceChunk(rows, start, lease.pages, True)], cache)
            start += len(rows)
            state = SamplingState(position=start, **fields)  # type: ignore[arg-type]
            rows = [int(sample(logits, [state]).ids[0])]
            output += rows
    return output


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    """Token ids without the end token."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 512, (num_tokens,), generator=generator).tolist()
