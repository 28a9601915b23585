"""Models whose windows differ from the usual: V4, which can't be replayed, and Engram."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.vocabulary import STORED
from rorqual_engine.prepare.random_v41 import write_random_v41
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_policy.blocks import block_keys
from safetensors.torch import save_file

from tests.integration.prefill_decode.fleet import NAMESPACE, running_fleet
from tests.support.replay import greedy_after_replay
from tests.support.tiny_deepseek import save_tiny_v4
from tests.support.tiny_model_dir import make_tokenizer
from tests.support.tiny_v41 import ENGRAM, FOUR_LAYERS
from tests.support.waiting import until

NO_WINDOWS = {"window_keep_bytes": 0}
PARAMS = GenerationParams(8, ignore_eos=True)
TOKENS = np.random.default_rng(5).integers(3, 250, 400).tolist()
CHANGES = FOUR_LAYERS | ENGRAM | {"vocab_size": 288, "image_token_id": 270}


@pytest.fixture(scope="module")
def v4_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v4")
    save_tiny_v4(directory)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def engram_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("engram")
    write_random_v41(directory, changes=CHANGES)
    classes = torch.arange(288, dtype=torch.int32) % 90
    save_file({STORED: classes}, directory / "map.safetensors")
    make_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


async def test_v4_goes_on_from_a_kept_window_also_of_another_instance(runtime_settings, v4_dir):
    model = load_model(v4_dir)
    (expected,) = BareEngine(model, num_pages=8).generate([TOKENS], PARAMS)
    async with running_fleet(runtime_settings, model, v4_dir, num_prefill=2, num_decode=2) as fleet:
        around = fleet.around
        first = await around.complete("first", TOKENS, ignore_eos=True)
        assert first.token_ids == expected
        await until(lambda: len(around.registered) == 3, "3 blocks to be registered")
        await until(lambda: around.windows, "the window to be told")

        async def both_hit() -> bool:
            names = [f"{number}-{len(around.received)}" for number in range(4)]
            for done in await asyncio.gather(
                *(around.complete(name, TOKENS, ignore_eos=True) for name in names)
            ):
                assert (done.num_cached_tokens, done.token_ids) == (384, expected)
                assert done.miss_reason == ""
            return all(prefill.counts.hits_total for _, prefill in fleet.prefill)

        await until(both_hit, "each prefill instance to go on from the window")
        await fleet.nothing_held()


async def test_v4_without_its_window_is_computed_again(runtime_settings, v4_dir):
    model = load_model(v4_dir)
    (expected,) = BareEngine(model, num_pages=8).generate([TOKENS], PARAMS)
    async with running_fleet(
        runtime_settings, model, v4_dir, prefill=NO_WINDOWS, decode=NO_WINDOWS
    ) as fleet:
        around = fleet.around
        await around.complete("first", TOKENS, ignore_eos=True)
        await until(lambda: len(around.registered) == 3, "3 blocks to be registered")
        second = await around.complete("second", TOKENS, ignore_eos=True)
        assert (second.num_cached_tokens, second.token_ids) == (0, expected)
        assert second.miss_reason == "no_window"


async def test_a_partly_evicted_v4_prefix_goes_on_from_a_window_at_its_new_end(
    runtime_settings, v4_dir
):
    model, store_dir = load_model(v4_dir), runtime_settings.home / "store"
    (expected,) = BareEngine(model, num_pages=8).generate([TOKENS], PARAMS)
    keys = block_keys(TOKENS, fingerprint=model.fingerprint, namespace=NAMESPACE)
    async with running_fleet(runtime_settings, model, v4_dir) as fleet:
        around = fleet.around
        await around.complete("beginning", TOKENS[:300], ignore_eos=True)
        await around.complete("whole", TOKENS, ignore_eos=True)
        await until(lambda: len(around.registered) == 3, "3 blocks to be registered")
        await until(lambda: len(around.windows) == 2, "both windows to be told")
        await fleet.evict(store_dir, keys[2:])
        again = await around.complete("again", TOKENS, ignore_eos=True)
        assert (again.num_cached_tokens, again.token_ids) == (256, expected)
        await fleet.nothing_held()


async def test_a_replay_knows_the_ids_before_it(runtime_settings, engram_dir):
    model = load_model(engram_dir)
    assert model.num_previous_ids > 0
    (expected,) = BareEngine(model, num_pages=8).generate([TOKENS], PARAMS)
    async with running_fleet(
        runtime_settings, model, engram_dir, prefill=NO_WINDOWS, decode=NO_WINDOWS
    ) as fleet:
        around = fleet.around
        first = await around.complete("first", TOKENS, ignore_eos=True)
        assert first.token_ids == expected
        await until(lambda: len(around.registered) == 3, "3 blocks to be registered")
        second = await around.complete("second", TOKENS, ignore_eos=True)
        assert second.num_cached_tokens == 256
        assert second.token_ids == greedy_after_replay(model, TOKENS, 3, 8)
