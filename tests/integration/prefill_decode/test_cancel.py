"""A cancelled request frees everything it holds, wherever it is."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from rorqual_decode.page_fetch import PageFetcher
from rorqual_proto.v1 import decode_pb2
from rorqual_runtime.blockstore import BlockStore
from rorqual_runtime.errors import NotFound

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import SlowModel, running_fleet
from tests.support.waiting import soon, until


async def test_while_it_waits_on_the_queue(runtime_settings, tiny_model, tiny_dir, bare):
    async with running_fleet(
        runtime_settings, tiny_model, tiny_dir, prefill={"max_active": 1}
    ) as fleet:
        around = fleet.around
        around.may_place.clear()
        await around.submit("first", prompt(20), ignore_eos=True)
        await until(lambda: around.placements, "the first job to be under way")
        await around.submit("second", prompt(30))
        await around.cancel("second")
        around.may_place.set()
        await around.complete("third", prompt(40), ignore_eos=True)
        assert around.output("first").token_ids == bare(prompt(20), 8)
        assert around.output("second").token_ids == []
        await fleet.nothing_held()
        assert await around.queue.depth() == 0


async def test_while_its_prefix_is_fetched(runtime_settings, tiny_model, tiny_dir, monkeypatch):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        await around.complete("warm", prompt(1500), ignore_eos=True)
        await until(lambda: len(around.registered) == 11, "the blocks to be registered")
        plain_get = BlockStore.get

        def slow_get(self, *args):
            time.sleep(0.1)
            return plain_get(self, *args)

        monkeypatch.setattr(BlockStore, "get", slow_get)
        await around.submit("r", prompt(1500))
        await until(lambda: fleet.prefill[0][1].cache.num_used, "pages to be taken")
        await asyncio.sleep(0.15)
        await around.cancel("r")
        await fleet.nothing_held()
        await until(lambda: "lease-r" in around.released, "the kv lease to be released")


async def test_while_it_is_computed(runtime_settings, tiny_model, tiny_dir):
    model = SlowModel(tiny_model, 0.5)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        steps = model.num_steps
        await fleet.around.submit("r", prompt(2000))
        await until(lambda: model.num_steps > steps, "the first step to be done")
        await fleet.around.cancel("r")
        await fleet.nothing_held()
        assert model.num_steps < steps + 4, "the rest of the prompt was still computed"
        assert fleet.around.output("r").token_ids == []


async def test_while_a_decode_instance_is_sought(runtime_settings, tiny_model, tiny_dir):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, num_decode=0) as fleet:
        await fleet.around.submit("r", prompt(300))
        await until(lambda: len(fleet.around.placements) > 2, "placement to be retried")
        await fleet.around.cancel("r")
        await fleet.nothing_held()


async def test_while_it_is_handed_over(runtime_settings, tiny_model, tiny_dir, monkeypatch):
    fetching = asyncio.Event()
    plain_fetch = PageFetcher.fetch

    async def slow_fetch(self, *args, **kwargs):
        fetching.set()
        await asyncio.sleep(10)
        return await plain_fetch(self, *args, **kwargs)

    monkeypatch.setattr(PageFetcher, "fetch", slow_fetch)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        await fleet.around.submit("r", prompt(300))
        await soon(fetching.wait())
        await fleet.around.cancel("r")
        await fleet.nothing_held()
        assert fleet.around.output("r").token_ids == []


async def test_while_it_generates(runtime_settings, tiny_model, tiny_dir):
    model = SlowModel(tiny_model, 0.05)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        around = fleet.around
        await around.submit("r", prompt(200), max_new_tokens=1000, ignore_eos=True)
        await until(lambda: len(around.output("r").token_ids) > 3, "tokens to come")
        await around.cancel("r")
        await fleet.nothing_held()
        await fleet.tokens_arrived()
        num_tokens = len(around.output("r").token_ids)
        await asyncio.sleep(0.2)
        assert len(around.output("r").token_ids) == num_tokens, "tokens came after the cancel"


async def test_the_tokens_of_a_choice_that_was_stopped_can_still_be_read(
    runtime_settings, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        around = fleet.around
        options = {"max_new_tokens": 1000, "ignore_eos": True}
        for choice_index in (0, 1):
            await around.submit("r", prompt(20), choice_index=choice_index, **options)
        outputs = [around.output("r", choice_index) for choice_index in (0, 1)]
        await until(lambda: all(len(o.token_ids) > 3 for o in outputs), "tokens to come")
        await around.cancel("r", 0)
        await until(lambda: fleet.decode[0][1].service.num_active == 1, "one choice to end")
        kept = await around.resend("r", 0)
        assert kept.token_ids == bare(prompt(20), len(kept.token_ids), temperature=0.0)
        assert len(kept.token_ids) >= len(outputs[0].token_ids) > 3
        assert kept.finish_reason == decode_pb2.FINISH_REASON_STOP
        num_tokens = len(outputs[1].token_ids)
        await until(lambda: len(outputs[1].token_ids) > num_tokens, "the other to go on")
        await around.cancel("r")
        await fleet.nothing_held()
        with pytest.raises(NotFound):
            await around.resend("r", 0)


async def test_fifty_streams_at_random_moments(runtime_settings, tiny_model, tiny_dir):
    dice = random.Random(5)
    model = SlowModel(tiny_model, 0.005)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_prefill=2, num_decode=2
    ) as fleet:

        async def start_and_cancel(number: int) -> None:
            request_id = f"r{number}"
            await fleet.around.submit(
                request_id, prompt(dice.randrange(1, 600), number), max_new_tokens=100
            )
            await asyncio.sleep(dice.random())
            await fleet.around.cancel(request_id)

        await asyncio.gather(*(start_and_cancel(n) for n in range(50)))
        await fleet.nothing_held()
        assert await fleet.around.queue.depth() == 0
