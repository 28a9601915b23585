"""More answers than there are KV pages for: the youngest step aside and go on where they were."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rorqual_engine.models import CausalModel, load_model
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_proto.v1 import error_pb2

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import Fleet, SlowModel, running_fleet
from tests.support.model import random_v41_dir
from tests.support.waiting import soon, until

NUM_ANSWERS = 6
PROMPT_TOKENS, NUM_TOKENS = 100, 200
SAMPLING: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 11})
SMALL = {"num_pages": 12, "growth_tokens": 128, "drain_grace_s": 0.0}
"""Room for the beginnings of all six, and for four of them up to their ends."""


def _expected(model: CausalModel) -> list[list[int]]:
    prompts = [prompt(PROMPT_TOKENS, seed=number) for number in range(NUM_ANSWERS)]
    params = [
        GenerationParams(NUM_TOKENS, ignore_eos=True, **SAMPLING[number % 2])
        for number in range(NUM_ANSWERS)
    ]
    return BareEngine(model, num_pages=32).generate(prompts, params)


async def _submit_all(fleet: Fleet) -> None:
    for number in range(NUM_ANSWERS):
        await fleet.around.submit(
            f"r{number}",
            prompt(PROMPT_TOKENS, seed=number),
            max_new_tokens=NUM_TOKENS,
            ignore_eos=True,
            **SAMPLING[number % 2],
        )


async def _answers(fleet: Fleet) -> list[list[int]]:
    outputs = [await fleet.around.finished(f"r{number}") for number in range(NUM_ANSWERS)]
    assert not any(output.error_code or output.num_repeated for output in outputs)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("kind", ["pages", "windows"])
async def test_answers_are_those_of_a_large_cache(runtime_settings, tiny_model, tiny_dir, kind):
    model, directory = tiny_model, tiny_dir
    if kind == "windows":
        model, directory = load_model(random_v41_dir()), random_v41_dir()
    async with running_fleet(runtime_settings, model, directory, decode=SMALL) as fleet:
        await _submit_all(fleet)
        assert await _answers(fleet) == _expected(model)
        totals = fleet.decode[0][1].pauses.totals
        assert totals.num_paused == totals.num_resumed > 0
        await fleet.nothing_held()


async def test_without_host_memory_the_youngest_are_given_up(
    runtime_settings, tiny_model, tiny_dir
):
    """Only they, and only where nobody could go on else."""
    decode = {**SMALL, "paused_bytes": 0}
    async with running_fleet(runtime_settings, tiny_model, tiny_dir, decode=decode) as fleet:
        await _submit_all(fleet)
        outputs = [await fleet.around.finished(f"r{number}") for number in range(NUM_ANSWERS)]
        codes = [output.error_code for output in outputs]
        assert set(codes) == {0, error_pb2.ERROR_CODE_UNAVAILABLE}
        for output, expected in zip(outputs, _expected(tiny_model), strict=True):
            assert output.token_ids == expected[: len(output.token_ids)]
        await fleet.nothing_held()


async def test_who_stands_aside_can_be_cancelled_and_moved(runtime_settings, tiny_model, tiny_dir):
    model = SlowModel(tiny_model, 0.005)
    async with running_fleet(
        runtime_settings, model, tiny_dir, num_decode=2, decode=SMALL
    ) as fleet:
        instance = fleet.decode[0][1]
        await _submit_all(fleet)
        await until(lambda: instance.pauses.num_paused > 1, "two to step aside")
        paused = [entry.key.request_id for entry in instance.service.entries if entry.paused]
        await fleet.around.cancel(paused[0])
        draining = asyncio.create_task(instance.drain(60.0))
        others = [n for n in range(NUM_ANSWERS) if f"r{n}" != paused[0]]
        outputs = [await fleet.around.finished(f"r{number}") for number in others]
        await soon(draining)
        expected = _expected(tiny_model)
        assert [output.token_ids for output in outputs] == [expected[number] for number in others]
        assert any(output.decode_ids == {"decode-0", "decode-1"} for output in outputs)
        await fleet.nothing_held()
