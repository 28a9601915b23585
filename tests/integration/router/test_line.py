"""The waiting line on a real queue: in order, let go of at once, and outliving who keeps it."""

import json
import time
from array import array

import pytest
from rorqual_proto.v1 import decode_pb2, error_pb2, generation_pb2, router_pb2, tensor_pb2
from rorqual_runtime import subjects
from rorqual_runtime.errors import NoCapacity, RateLimited
from rorqual_runtime.logs import JsonFormatter
from rorqual_sim.decisions import replay_decisions

from tests.support.service_process import service_process
from tests.support.waiting import until

from .conftest import FakeKvmeta, FakePrefill, running_router

LONG, SHORT = 4000, 200
"""Tokens: 4 s and 0.2 s of work on the instances of these tests."""


def generation(request_id, num_tokens=SHORT, *, deadline_s=60.0, **fields):
    prompt = tensor_pb2.Payload(inline=array("i", range(num_tokens)).tobytes())
    return generation_pb2.Generation(
        request_id=request_id,
        prompt=prompt,
        num_prompt_tokens=num_tokens,
        sampling=generation_pb2.SamplingParams(max_new_tokens=16),
        deadline_unix_s=time.time() + deadline_s,
        reply=generation_pb2.ReplyRoute(recipe_id="recipe-1"),
        **fields,
    )


def ids(taker):
    return [job.generation.request_id for job in taker.jobs]


async def waiting(router, num):
    await until(lambda: router.line.num_waiting == num, f"{num} jobs in line")


async def test_jobs_go_out_in_the_order_of_the_policy_and_the_log_tells_why(
    runtime_settings, bus, fleet, client, caplog
):
    taker = FakePrefill(bus, pending_s=9.0)
    await taker.serve()
    logging_settings = runtime_settings.model_copy(update={"decision_log": True})
    async with running_router(logging_settings) as router:
        await taker.say_room()
        await client.submit(generation("long", LONG))
        await client.submit(generation("short"))
        await client.submit(generation("urgent", priority=1))
        await waiting(router, 3)
        assert (taker.jobs, round(router.line.waiting_s, 1)) == ([], 4.4)
        taker.pending_s = 0.0
        await taker.say_room()
        await until(lambda: len(taker.jobs) == 3, "all jobs to be given")
        assert ids(taker) == ["urgent", "short", "long"]
        await until(lambda: router.line.num_waiting == 0)
        assert await client.place("short") in ("d0", "d1")
    assert await client.queue.depth() == 0
    records = [record for record in caplog.records if record.message == "decision"]
    lines = [json.loads(JsonFormatter("router", "r").format(record)) for record in records]
    found = replay_decisions(lines)
    assert (found.counts["pull"], found.counts["admission"], found.counts["placement"]) == (3, 3, 1)
    assert found.differences == []


async def test_a_cancelled_job_leaves_the_line_and_the_queue_at_once(
    runtime_settings, bus, fleet, client
):
    kvmeta = FakeKvmeta(num_blocks=1)
    await kvmeta.serve(bus)
    async with running_router(runtime_settings) as router:
        await client.submit(generation("gone"))
        await waiting(router, 1)
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
        await waiting(router, 0)
        await until(lambda: kvmeta.released == ["lease-1"], "the kv lease")

        async def is_empty():
            return await client.queue.depth() == 0

        await until(is_empty, "the queue to be empty")


async def test_who_cannot_meet_its_deadline_hears_so_while_nobody_has_room(
    runtime_settings, bus, fleet, client
):
    errors = []

    async def on_tokens(batch, _context):
        errors.extend((d.request_id, d.error.code) for d in batch.deltas)

    await bus.subscribe(subjects.recipe_tokens("recipe-1"), decode_pb2.TokenBatch, on_tokens)
    slow = FakePrefill(bus, pending_s=9.0)
    async with running_router(runtime_settings) as router:
        await slow.say_room()
        await client.submit(generation("late", LONG, deadline_s=5.0))
        await until(lambda: errors, "the error")
        assert errors == [("late", error_pb2.ERROR_CODE_QUEUE_TIMEOUT)]
        await waiting(router, 0)


async def test_a_tenant_at_its_cap_is_told_to_wait_and_others_are_not(
    runtime_settings, fleet, client
):
    async with running_router(runtime_settings, max_tenant_jobs=2) as router:
        for number in range(2):
            await client.submit(generation(f"a{number}", tenant="a"))
        with pytest.raises(RateLimited) as refusal:
            await client.submit(generation("a2", tenant="a"))
        assert refusal.value.retry_after_s >= 1
        await client.submit(generation("b", tenant="b"))
        await waiting(router, 3)
    assert len(await client.jobs()) == 3


async def test_an_instance_that_refuses_leaves_the_job_to_another(
    runtime_settings, bus, fleet, client
):
    gone, taker = FakePrefill(bus, "a-gone"), FakePrefill(bus, "taker")
    await taker.serve()
    async with running_router(runtime_settings) as router:
        await gone.say_room()  # and serves nothing
        await client.submit(generation("r"))
        await waiting(router, 1)
        await taker.say_room()
        await until(lambda: taker.jobs, "the job to be given")
    assert (ids(taker), await client.queue.depth()) == (["r"], 0)


async def test_a_cancel_while_an_instance_refuses_the_job_leaves_nothing_in_line(
    runtime_settings, bus, fleet, client
):
    class Refusing(FakePrefill):
        async def on_assignment(self, message, _context):
            await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
            raise NoCapacity

    refusing, taker = Refusing(bus), FakePrefill(bus)
    await refusing.serve()
    await taker.serve()
    async with running_router(runtime_settings) as router:
        await client.submit(generation("gone"))
        await waiting(router, 1)
        await refusing.say_room()

        async def is_empty():
            return await client.queue.depth() == 0

        await until(is_empty, "the queue to be empty")
        assert router.line.num_waiting == 0
        await taker.say_room()
        await client.submit(generation("next"))
        await until(lambda: taker.jobs, "the next job to be given")
    assert ids(taker) == ["next"]


async def test_only_who_begins_a_job_uses_up_one_of_its_tries(runtime_settings, bus, fleet, client):
    for number in range(4):  # four keepers of the line, one after the other
        async with running_router(runtime_settings, f"router-{number}") as router:
            if number == 0:
                await client.submit(generation("r"))
            await waiting(router, 1)
    taker = FakePrefill(bus, num_given_back=5, num_untried=2)
    await taker.serve()
    async with running_router(runtime_settings) as router:
        await waiting(router, 1)
        await taker.say_room()
        await until(lambda: len(taker.jobs) == 6, "the job to come back")
    assert taker.exhausted == [False] * 5 + [True]


async def test_a_killed_keepers_jobs_go_to_the_next_router(
    runtime_settings, nats_server, bus, fleet, client, tmp_path
):
    keeper = service_process("router", bus, nats_url=nats_server.url, home=tmp_path, env={})
    async with keeper as oldest, running_router(runtime_settings, silent_s=2.0) as router:
        await client.submit(generation("r"))

        async def is_kept():
            load = (await client.router_load(oldest.instance.id)).router
            return load.num_waiting == 1

        await until(is_kept, "the oldest router to keep the job")
        assert router.line.num_waiting == 0
        oldest.process.kill()
        await waiting(router, 1)
        taker = FakePrefill(bus)
        await taker.serve()
        await taker.say_room()
        await until(lambda: taker.jobs, "the job to be given")
        assert ids(taker) == ["r"]
