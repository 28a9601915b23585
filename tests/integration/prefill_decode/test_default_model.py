"""The same with the default model: what the fleet serves is what its engine says."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams
from tokenizers import Tokenizer

from tests.integration.prefill_decode.fleet import running_fleet
from tests.support.model import default_model_dir

TEXTS = (
    "Gravity is",
    "def fibonacci(n):\n    ",
    "The capital of France is Paris. The capital of Japan is",
    "鲸鱼是海洋中最大的动物。" * 12,
    "A whale surfaced, looked around and dived again. " * 40,
)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return load_model(default_model_dir())


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(default_model_dir() / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in TEXTS]


@pytest.fixture(scope="module")
def expected(model, prompts) -> list[list[int]]:
    engine = BareEngine(model, num_pages=32)
    params = GenerationParams(NUM_TOKENS, ignore_eos=True)
    return [engine.generate([token_ids], params)[0] for token_ids in prompts]


@pytest.mark.parametrize(("num_prefill", "num_decode"), [(1, 1), (1, 2)])
async def test_greedy_output_is_that_of_the_engine_alone(
    runtime_settings, model, prompts, expected, num_prefill, num_decode
):
    runtime = runtime_settings.model_copy(update={"shm_bytes": 96 << 20})
    async with running_fleet(
        runtime, model, default_model_dir(), num_prefill=num_prefill, num_decode=num_decode
    ) as fleet:

        async def complete(request_id: str, token_ids: list[int]) -> list[int]:
            output = await fleet.around.complete(
                request_id, token_ids, max_new_tokens=NUM_TOKENS, ignore_eos=True
            )
            return output.token_ids

        together = await asyncio.gather(*(complete(f"a{n}", p) for n, p in enumerate(prompts)))
        again = [await complete(f"b{n}", token_ids) for n, token_ids in enumerate(prompts)]
        await fleet.nothing_held()
    assert together == expected
    assert again == expected, "with blocks from the store"
