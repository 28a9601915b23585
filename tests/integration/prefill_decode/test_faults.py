"""Duplicates, broken brokers, shutdowns: no token lost, none invented, nobody left waiting."""

from __future__ import annotations

import asyncio

from rorqual_proto.v1 import decode_pb2, error_pb2
from rorqual_runtime import subjects

from tests.integration.prefill_decode.conftest import prompt
from tests.integration.prefill_decode.fleet import SlowModel, running_fleet
from tests.support.waiting import WAIT_S, soon, until


async def test_a_job_that_comes_twice_gives_one_stream(
    runtime_settings, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(runtime_settings, model, tiny_dir, num_prefill=2) as fleet:
        around = fleet.around
        for n in range(2):
            await around.submit(
                "r", prompt(50), max_new_tokens=30, ignore_eos=True, msg_id=f"again-{n}"
            )
        output = await around.finished("r")
        await until(lambda: not fleet.held(), "both jobs to be done")
        assert output.token_ids == bare(prompt(50), 30)
        assert output.num_repeated == 0
        assert await around.queue.depth() == 0


async def test_tokens_survive_a_restart_of_the_broker(
    runtime_settings, nats_server, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        around = fleet.around
        await around.submit("r", prompt(50), max_new_tokens=120, ignore_eos=True)
        output = around.output("r")
        await until(lambda: len(output.token_ids) > 10, "tokens to come")
        await nats_server.kill()
        await asyncio.sleep(0.7)
        await nats_server.restart()
        await around.finished("r")
        assert output.token_ids == bare(prompt(50), 120)
        assert not output.has_gap


async def test_an_answer_that_ends_while_the_broker_is_away_arrives_later(
    runtime_settings, nats_server, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.02)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        around = fleet.around
        await around.submit("r", prompt(50), max_new_tokens=30, ignore_eos=True)
        await until(lambda: len(around.output("r").token_ids) > 3, "tokens to come")
        await nats_server.kill()
        await until(lambda: not fleet.decode[0][1].service.num_active, "the end")
        await nats_server.restart()
        assert (await around.finished("r")).token_ids == bare(prompt(50), 30)


async def test_a_reader_gets_what_it_missed(runtime_settings, tiny_model, tiny_dir, bare):
    async with running_fleet(runtime_settings, tiny_model, tiny_dir) as fleet:
        around = fleet.around
        await around.complete("r", prompt(50), max_new_tokens=30, ignore_eos=True)
        reply = await around.bus.request(
            subjects.decode_resend("decode-0"),
            decode_pb2.ResendRequest(request_id="r", from_seq=12),
            decode_pb2.ResendReply,
            timeout_s=WAIT_S,
        )
        assert reply.delta.seq == 12
        assert list(reply.delta.token_ids) == bare(prompt(50), 30)[12:]
        assert reply.delta.finish_reason == decode_pb2.FINISH_REASON_LENGTH


async def test_a_draining_prefill_gives_back_what_it_cannot_finish(
    runtime_settings, tiny_model, tiny_dir, bare
):
    model = SlowModel(tiny_model, 0.3)
    async with running_fleet(runtime_settings, model, tiny_dir, num_prefill=1) as fleet:
        around = fleet.around
        await around.submit("r", prompt(2000), ignore_eos=True)
        service = fleet.prefill[0][1].service
        await until(lambda: service.num_active, "the job to be pulled")
        await service.drain(3.5)
        await until(lambda: not fleet.prefill[0][1].cache.num_used, "the pages to be free")
        assert await around.queue.depth() == 1
        model.step_s = 0.0
        async with running_fleet(
            runtime_settings.model_copy(update={"home": runtime_settings.home / "b"}),
            tiny_model,
            tiny_dir,
            num_decode=0,
        ):
            assert (await around.finished("r")).token_ids == bare(prompt(2000), 8)


async def test_a_draining_decode_refuses_new_ones(runtime_settings, tiny_model, tiny_dir):
    model = SlowModel(tiny_model, 0.05)
    async with running_fleet(runtime_settings, model, tiny_dir, num_decode=2) as fleet:
        around = fleet.around
        await around.submit("long", prompt(50), max_new_tokens=60, ignore_eos=True)
        await until(lambda: len(around.output("long").token_ids) > 2, "tokens to come")
        draining = asyncio.create_task(fleet.decode[0][1].drain(60.0))
        await asyncio.sleep(0)  # it has begun
        other = await around.complete("other", prompt(60), ignore_eos=True, max_new_tokens=4)
        assert other.decode_ids == {"decode-1"}
        await soon(draining)
        assert (await around.finished("long")).decode_ids == {"decode-0"}, "it ended in its grace"
        await fleet.nothing_held()


async def test_a_generation_past_its_deadline_ends_with_an_error(
    runtime_settings, tiny_model, tiny_dir
):
    model = SlowModel(tiny_model, 0.05)
    async with running_fleet(runtime_settings, model, tiny_dir) as fleet:
        output = await fleet.around.complete(
            "r", prompt(50), max_new_tokens=2000, ignore_eos=True, deadline_s=1.0
        )
        assert output.error_code == error_pb2.ERROR_CODE_DEADLINE_EXCEEDED
        assert output.token_ids
        await fleet.nothing_held()


async def test_a_poisonous_job_is_buried_after_three_deliveries(
    runtime_settings, tiny_model, tiny_dir
):
    class Broken(SlowModel):
        def forward(self, chunks, cache):
            if sum(len(chunk.token_ids) for chunk in chunks) == 333:
                raise RuntimeError("this prompt breaks the engine")
            return super().forward(chunks, cache)

    async with running_fleet(runtime_settings, Broken(tiny_model, 0.0), tiny_dir) as fleet:
        output = await fleet.around.complete("r", prompt(333))
        assert output.error_code == error_pb2.ERROR_CODE_INTERNAL
        await fleet.nothing_held()
        assert await fleet.around.queue.depth() == 0
        assert (await fleet.around.complete("fine", prompt(20))).finish_reason
