"""Job in, tokens out: exactly what the bare engine says."""

from __future__ import annotations

import asyncio

import pytest
from rorqual_proto.v1 import decode_pb2
from rorqual_runtime.errors import NotFound

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import Surroundings, running_fleet
from tests.support.waiting import until


@pytest.mark.parametrize("num_tokens", [1, 127, 128, 129, 700])
async def test_greedy_output_equals_the_bare_engine(
    runtime_settings, tiny_model, tiny_dir, bare, num_tokens
):
    token_ids = prompt(num_tokens)
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        output = await fleet.around.complete(
            "r", token_ids, max_new_tokens=20, ignore_eos=True, temperature=0.0
        )
        assert output.token_ids == bare(token_ids, 20)
        assert output.finish_reason == decode_pb2.FINISH_REASON_LENGTH
        assert output.num_prompt_tokens == num_tokens
        await fleet.nothing_held()


async def test_concurrent_sampled_streams_are_each_what_they_would_be_alone(
    runtime_settings, tiny_model, tiny_dir, bare
):
    prompts = [prompt(30 + 50 * n, seed=n) for n in range(10)]
    async with running_fleet(
        runtime_settings, tiny_model, tiny_dir, num_prefill=2, num_decode=2
    ) as fleet:
        outputs = await asyncio.gather(
            *(
                fleet.around.complete(
                    f"r{n}",
                    token_ids,
                    max_new_tokens=40,
                    ignore_eos=True,
                    temperature=0.8,
                    seed=n,
                )
                for n, token_ids in enumerate(prompts)
            )
        )
        await fleet.nothing_held()
    for n, (token_ids, output) in enumerate(zip(prompts, outputs, strict=True)):
        expected = bare(token_ids, 40, temperature=0.800000011920929, seed=n)
        assert output.token_ids == expected, f"stream {n}"
        assert not output.has_gap


async def test_a_choice_of_several_can_be_read_until_the_deadline(
    runtime_settings, tiny_model, tiny_dir
):
    async with running_fleet(
        runtime_settings,
        tiny_model,
        tiny_dir,
        decode={"emitted_keep_s": 0.1, "max_kept_choices": 2},
    ) as fleet:
        around = fleet.around
        await around.complete("alone", prompt(20), ignore_eos=True)
        for request_id in ("a", "b", "c"):
            await around.complete(
                request_id, prompt(20), num_choices=2, ignore_eos=True, deadline_s=60.0
            )
        for forgotten in ("alone", "a"):
            await until(lambda: _is_forgotten(around, forgotten))  # noqa: B023
        for kept in ("b", "c"):
            assert (await around.resend(kept)).token_ids == around.output(kept).token_ids
        await around.complete("d", prompt(20), num_choices=2, ignore_eos=True, deadline_s=2.0)
        await until(lambda: _is_forgotten(around, "d"))


async def _is_forgotten(around: Surroundings, request_id: str) -> bool:
    try:
        await around.resend(request_id)
    except NotFound:
        return True
    return False
