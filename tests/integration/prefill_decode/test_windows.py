"""A model with windows: what the fleet says is what its engine says, wherever windows come from."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_policy.blocks import block_keys
from rorqual_runtime.errors import Unavailable
from rorqual_runtime.windows import WindowExchange

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import NAMESPACE, SlowModel, running_fleet
from tests.support.model import random_v41_dir
from tests.support.replay import greedy_after_replay
from tests.support.waiting import until

LENGTHS = (5, 128, 129, 300, 700)
NUM_TOKENS = 8
NO_WINDOWS = {"window_keep_bytes": 0}


@pytest.fixture(scope="module")
def model() -> CausalModel:
    return load_model(random_v41_dir())


@pytest.fixture(scope="module")
def bare(model):
    engine = BareEngine(model, num_pages=32)

    def generate(token_ids: list[int], num_tokens: int = NUM_TOKENS) -> list[int]:
        params = GenerationParams(num_tokens, ignore_eos=True)
        return engine.generate([token_ids], params)[0]

    return generate


async def test_chunks_batches_and_2p2d_change_nothing(runtime_settings, model, bare):
    prompts = [prompt(n, seed=n) for n in LENGTHS]
    expected = [bare(p) for p in prompts]
    async with running_fleet(
        runtime_settings,
        model,
        random_v41_dir(),
        num_prefill=2,
        num_decode=2,
        prefill={"step_tokens": 256},
    ) as fleet:

        async def complete(name: str, token_ids: list[int]) -> list[int]:
            return (await fleet.around.complete(name, token_ids, ignore_eos=True)).token_ids

        together = await asyncio.gather(*(complete(f"a{n}", p) for n, p in enumerate(prompts)))
        assert together == expected
        again = await asyncio.gather(*(complete(f"b{n}", p) for n, p in enumerate(prompts)))
        assert again == expected, "with blocks from the store and windows of others"
        await fleet.nothing_held()


async def test_a_kept_window_saves_the_whole_prefix(runtime_settings, model, bare):
    token_ids = prompt(700)
    async with running_fleet(runtime_settings, model, random_v41_dir()) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        first = await around.complete("first", token_ids, ignore_eos=True)
        assert first.announced == []  # delivered again it might be a replay, and draw another
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert (second.num_cached_tokens, engine.num_computed_tokens) == (640, 700 + 60)
        assert second.token_ids == bare(token_ids)
        await fleet.nothing_held()


async def test_an_answers_window_carries_the_next_turn(runtime_settings, model, bare):
    token_ids = prompt(100)
    async with running_fleet(runtime_settings, model, random_v41_dir()) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        first = await around.complete("a", token_ids, max_new_tokens=200, ignore_eos=True)
        next_turn = token_ids + first.token_ids + prompt(10, seed=3)
        await until(lambda: len(around.registered) == 2, "2 blocks to be registered")
        key = list(around.registered)[-1]
        await until(lambda: key in around.windows, "the answer's window to be told")
        second = await around.complete("b", next_turn, ignore_eos=True)
        assert (second.num_cached_tokens, engine.num_computed_tokens) == (256, 100 + 54)
        assert second.token_ids == bare(next_turn)
        await fleet.nothing_held()


async def test_without_its_window_a_prefix_is_replayed(runtime_settings, model, bare):
    """The last block runs again, and is not called cached; the result is that of such a replay."""
    token_ids = prompt(700)
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), prefill=NO_WINDOWS, decode=NO_WINDOWS
    ) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        first = await around.complete("first", token_ids, ignore_eos=True)
        assert first.token_ids == bare(token_ids)
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert (second.num_cached_tokens, engine.num_computed_tokens) == (512, 700 + 188)
        assert second.token_ids == greedy_after_replay(model, token_ids, 5, NUM_TOKENS)
        await fleet.nothing_held()


async def test_blocks_behind_a_replay_are_marked_and_nothing_exact_uses_them(
    runtime_settings, model, bare
):
    longer = prompt(1000)
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), prefill=NO_WINDOWS, decode=NO_WINDOWS
    ) as fleet:
        around = fleet.around
        await around.complete("first", longer[:700], ignore_eos=True)
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        assert len(around.exact_keys) == 5
        replayed = await around.complete("second", longer, ignore_eos=True)
        assert (replayed.num_cached_tokens, replayed.miss_reason) == (512, "no_window")
        await until(lambda: len(around.registered) == 7, "2 more blocks to be registered")
        assert len(around.exact_keys) == 5
        exact = await around.complete("third", longer, ignore_eos=True, exact_only=True)
        assert exact.token_ids == bare(longer)
        assert (exact.num_cached_tokens, exact.miss_reason) == (0, "replay_boundary")
        await fleet.nothing_held()


async def test_a_window_made_behind_a_replay_is_marked_and_nothing_exact_uses_it(
    runtime_settings, model, bare
):
    """Prefill keeps one window only, so that the next prompt takes the place of the first's."""
    longer = prompt(1000)
    one = {"window_keep_bytes": model.kv_layout.snapshot_bytes}
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), prefill=one, decode=NO_WINDOWS
    ) as fleet:
        around = fleet.around
        await around.complete("first", longer[:700], ignore_eos=True)
        await around.complete("other", prompt(300, seed=1), ignore_eos=True)
        await until(lambda: len(around.registered) == 7, "5 and 2 blocks to be registered")
        replayed = await around.complete("second", longer, ignore_eos=True)
        assert replayed.num_cached_tokens == 512
        await until(lambda: len(around.registered) == 9, "2 more blocks to be registered")
        key = block_keys(longer, fingerprint=model.fingerprint, namespace=NAMESPACE)[6]
        assert around.windows[key].replayed
        again = await around.complete("third", longer, ignore_eos=True)
        assert (again.num_cached_tokens, again.token_ids) == (896, replayed.token_ids)
        exact = await around.complete("fourth", longer, ignore_eos=True, exact_only=True)
        assert (exact.num_cached_tokens, exact.token_ids) == (0, bare(longer))
        await until(lambda: not around.windows[key].replayed, "the exact window to be kept")
        warm = await around.complete("fifth", longer, ignore_eos=True, exact_only=True)
        assert (warm.num_cached_tokens, warm.token_ids) == (896, bare(longer))
        await fleet.nothing_held()


async def test_a_partly_evicted_prefix_is_replayed_at_its_new_end(runtime_settings, model, bare):
    token_ids, store_dir = prompt(700), runtime_settings.home / "store"
    keys = block_keys(token_ids, fingerprint=model.fingerprint, namespace=NAMESPACE)
    async with running_fleet(runtime_settings, model, random_v41_dir()) as fleet:
        around = fleet.around
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 5, "5 blocks to be registered")
        await fleet.evict(store_dir, keys[3:])
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert second.num_cached_tokens == 256
        assert second.token_ids == greedy_after_replay(model, token_ids, 3, NUM_TOKENS)
        exact = await around.complete("third", token_ids, ignore_eos=True, exact_only=True)
        assert (exact.num_cached_tokens, exact.token_ids) == (0, bare(token_ids))
        await fleet.nothing_held()


async def test_a_window_whose_holder_has_died_is_replayed(runtime_settings, model, monkeypatch):
    async def nobody(self, holder_id, key):
        raise Unavailable("gone")

    token_ids = prompt(250)
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), prefill=NO_WINDOWS
    ) as fleet:
        around = fleet.around
        first = await around.complete("a", token_ids, max_new_tokens=200, ignore_eos=True)
        next_turn = token_ids + first.token_ids
        await until(lambda: len(around.registered) == 3, "3 blocks to be registered")
        monkeypatch.setattr(WindowExchange, "_fetch_from", nobody)
        second = await around.complete("b", next_turn, ignore_eos=True)
        assert second.num_cached_tokens == 256
        assert len(second.token_ids) == 8
        await fleet.nothing_held()


async def test_a_replay_that_saves_nothing_is_not_done(runtime_settings, model, bare):
    token_ids = prompt(200)
    async with running_fleet(
        runtime_settings, model, random_v41_dir(), prefill=NO_WINDOWS, decode=NO_WINDOWS
    ) as fleet:
        around, engine = fleet.around, fleet.prefill[0][1].engine
        await around.complete("first", token_ids, ignore_eos=True)
        await until(lambda: len(around.registered) == 1, "a block to be registered")
        second = await around.complete("second", token_ids, ignore_eos=True)
        assert (second.num_cached_tokens, engine.num_computed_tokens) == (0, 400)
        assert second.token_ids == bare(token_ids)


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.5])
async def test_a_cancel_leaves_no_window_held(runtime_settings, model, after_s):
    slow = SlowModel(model, 0.05)
    async with running_fleet(runtime_settings, slow, random_v41_dir()) as fleet:
        await fleet.around.submit("r", prompt(600), max_new_tokens=500, ignore_eos=True)
        await until(lambda: fleet.prefill[0][1].cache.num_used_windows, "a slot to be taken")
        await asyncio.sleep(after_s)
        await fleet.around.cancel("r")
        await fleet.nothing_held()
