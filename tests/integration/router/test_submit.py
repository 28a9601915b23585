"""Submissions become jobs: once, with keys and hints, bounded, or refused with a reason."""

import asyncio
import time
from array import array

import pytest
from rorqual_policy import block_keys
from rorqual_proto.v1 import generation_pb2, router_pb2, tensor_pb2
from rorqual_runtime import subjects
from rorqual_runtime.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NoCapacity,
    Unsupported,
)
from rorqual_runtime.payload import get_payload, put_payload
from rorqual_runtime.tensors import TensorPlane

from tests.support.waiting import WAIT_S, soon, until

from .conftest import FakeGrammar, FakeKvmeta, running_router

TOKENS = array("i", range(1000, 1300))


def generation(request_id="r1", choice=0, prompt=None, num_tokens=300, **fields):
    return generation_pb2.Generation(
        request_id=request_id,
        choice_index=choice,
        prompt=prompt or tensor_pb2.Payload(inline=TOKENS.tobytes()),
        num_prompt_tokens=num_tokens,
        sampling=generation_pb2.SamplingParams(max_new_tokens=16),
        cache_namespace="tenant",
        deadline_unix_s=fields.pop("deadline_unix_s", time.time() + 60),
        **fields,
    )


def keys():
    return block_keys(TOKENS, fingerprint="engine-fingerprint", namespace="tenant")


async def test_a_job_carries_the_match_of_its_block_keys(runtime_settings, bus, fleet, client):
    kvmeta = FakeKvmeta(num_blocks=1)
    await kvmeta.serve(bus)
    async with running_router(runtime_settings):
        submitted = await client.submit(generation())
    (job,) = await client.jobs()
    assert (submitted.bucket, submitted.num_cached_tokens) == ("lt16k", 128)
    assert kvmeta.requests[0].packed_block_keys == b"".join(keys())
    assert (job.num_matched_blocks, job.kv_lease_id) == (1, "lease-1")
    assert kvmeta.requests[0].model_fingerprint == "engine-fingerprint"


async def test_one_job_a_choice_and_none_twice(runtime_settings, fleet, client):
    choices = [generation(choice=index) for index in range(3)]
    async with running_router(runtime_settings) as router:
        await client.submit(*choices)
        await client.submit(*choices)
        await router.gauge.refresh()
        assert router.gauge.num_jobs == 3
    jobs = await client.jobs()
    assert sorted(job.generation.choice_index for job in jobs) == [0, 1, 2]


async def test_a_prompt_by_ticket_stays_readable_for_prefill(runtime_settings, bus, fleet, client):
    long = array("i", [7] * 5000)
    kvmeta = FakeKvmeta(num_blocks=0)
    await kvmeta.serve(bus)
    async with (
        await TensorPlane.open(runtime_settings, "recipe-1", 1, runtime_settings.host_id) as plane,
        running_router(runtime_settings),
    ):
        plane.max_inline_bytes = 100
        prompt = await put_payload(plane, long.tobytes())
        assert prompt.WhichOneof("body") == "ticket"
        await client.submit(generation(prompt=prompt, num_tokens=len(long)))
        (job,) = await client.jobs()
        assert len(kvmeta.requests[0].packed_block_keys) == 5000 // 128 * 16
        assert await get_payload(plane, job.generation.prompt, keep=True) == long.tobytes()


async def test_a_slow_or_absent_kvmeta_is_no_match_and_no_error(
    runtime_settings, bus, fleet, client
):
    async with running_router(runtime_settings, match_timeout_s=0.15):
        assert (await client.submit(generation("absent"))).num_cached_tokens == 0
        await FakeKvmeta(num_blocks=2, delay_s=600.0).serve(bus)
        assert (await client.submit(generation("slow"))).num_cached_tokens == 0
    assert {job.num_matched_blocks for job in await client.jobs()} == {0}


async def test_a_grammar_error_ends_the_request_and_gives_the_lease_back(
    runtime_settings, bus, fleet, client
):
    kvmeta, grammar = FakeKvmeta(num_blocks=1), FakeGrammar(InvalidRequest("bad", "schema"))
    await kvmeta.serve(bus)
    await grammar.serve(bus)
    constraint = generation_pb2.Constraint(kind="CONSTRAINT_KIND_REGEX", source="(")
    async with running_router(runtime_settings):
        with pytest.raises(InvalidRequest, match="bad"):
            await client.submit(generation(constraint=constraint))
        await until(lambda: kvmeta.released)
        assert kvmeta.released == ["lease-1"]
        grammar.error = None
        await client.submit(generation("r2", constraint=constraint))
    (job,) = await client.jobs()
    assert job.generation.request_id == "r2"
    assert job.compiled_grammar.owner_id == "grammar-1"


async def test_the_queue_cap_holds_and_comes_from_the_stream(runtime_settings, fleet, client):
    async with (
        running_router(runtime_settings, "router-a", max_queued_jobs=3, depth_interval_s=0.05) as a,
        running_router(runtime_settings, "router-b", max_queued_jobs=3, depth_interval_s=0.05) as b,
    ):
        for number in range(3):
            await client.submit(generation(f"fits{number}"))
        await until(lambda: (a.gauge.num_jobs, b.gauge.num_jobs) == (3, 3))
        for number in range(6):
            with pytest.raises(NoCapacity) as refusal:
                await client.submit(generation(f"over{number}"))
            assert refusal.value.retry_after_s >= 1
        assert len(await client.jobs()) == 3
        await until(lambda: (a.gauge.num_jobs, b.gauge.num_jobs) == (0, 0))
        await client.submit(generation("fits-again"))


async def test_a_burst_does_not_pass_the_cap(runtime_settings, bus, fleet, client):
    await FakeKvmeta(delay_s=0.05).serve(bus)
    async with running_router(runtime_settings, max_queued_jobs=3) as router:
        await fleet.heard_by(router)
        outcomes = await asyncio.gather(
            *(client.submit(generation(f"r{number}")) for number in range(10)),
            return_exceptions=True,
        )
    assert sum(isinstance(outcome, NoCapacity) for outcome in outcomes) == 7
    assert len(await client.jobs()) == 3


async def test_waits_for_a_fleet_that_is_still_starting(runtime_settings, bus, client, fleet):
    del fleet.reports["d0"], fleet.reports["d1"]
    async with running_router(runtime_settings, fleet_wait_s=WAIT_S):
        submitting = asyncio.create_task(client.submit(generation()))
        await asyncio.sleep(0.3)
        assert not submitting.done()
        fleet.add_decode("late")
        assert (await submitting).bucket == "lt16k"


async def test_refuses_after_a_bound_without_a_fleet_and_counts_the_demand(
    runtime_settings, client
):
    async with running_router(runtime_settings, fleet_wait_s=0.2) as router:
        with pytest.raises(NoCapacity, match="no prefill and no decode"):
            await client.submit(generation())
        assert router.submitter.counters.missed_tokens == len(TOKENS)


async def test_what_can_never_work_is_refused_at_once(runtime_settings, fleet, client):
    async with running_router(runtime_settings):
        await client.submit(generation("first"))
        with pytest.raises(DeadlineExceeded):
            await client.submit(generation("late", deadline_unix_s=time.time() - 1))
        with pytest.raises(ContextTooLong):
            await client.submit(generation("long", num_tokens=8192))
        with pytest.raises(InvalidRequest):
            await client.submit()
        with pytest.raises(InvalidRequest, match="choice"):
            await client.submit(generation("twice"), generation("twice"))
        with pytest.raises(Unsupported, match="adapters"):
            await client.submit(generation("adapted", adapter="lora"))
    assert [job.generation.request_id for job in await client.jobs()] == ["first"]


async def test_a_cancelled_request_is_not_queued(runtime_settings, bus, fleet, client):
    async with running_router(runtime_settings) as router:
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
        await until(lambda: "gone" in router._cancelled)
        with pytest.raises(Cancelled):
            await client.submit(generation("gone"))
    assert await client.jobs() == []


async def test_a_cancel_ends_what_is_still_waiting(runtime_settings, bus, client):
    async with running_router(runtime_settings, fleet_wait_s=600.0) as router:
        submitting = asyncio.create_task(client.submit(generation("waits"), timeout_s=600.0))
        await until(lambda: len(router._under_way))
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="waits"))
        with pytest.raises(Cancelled):
            await soon(submitting)
    assert await client.jobs() == []


async def test_demand_is_reported(runtime_settings, bus, fleet, client):
    await FakeKvmeta(num_blocks=1).serve(bus)
    async with running_router(runtime_settings) as router:
        await client.submit(generation("a"))
        await client.submit(generation("b"))
        counters = router.submitter.counters
        assert (counters.submitted, counters.missed_tokens) == (2, 2 * (len(TOKENS) - 128))


async def test_demand_counts_what_runs_again_without_its_window(
    runtime_settings, bus, fleet, client
):
    fleet.reports["p0"].prefill.num_replayed_tokens = 128
    await FakeKvmeta(num_blocks=2).serve(bus)
    async with running_router(runtime_settings) as router:
        await client.submit(generation("a"))
        assert router.submitter.counters.missed_tokens == len(TOKENS) - 128


async def test_a_submission_that_fails_half_way_can_be_made_again(
    runtime_settings, bus, fleet, client
):
    kvmeta = FakeKvmeta(num_blocks=1)
    await kvmeta.serve(bus)
    async with running_router(runtime_settings, stream_max_jobs=1) as router:
        with pytest.raises(NoCapacity):
            await client.submit(generation("r", 0), generation("r", 1))
        await router.gauge.refresh()
        assert router.gauge.num_jobs == 1
        await until(lambda: kvmeta.released == ["lease-1"])
        await client.submit(generation("r", 0))
        await router.gauge.refresh()
        assert router.gauge.num_jobs == 1


async def test_asking_again_takes_no_second_lease(runtime_settings, bus, fleet, client):
    kvmeta = FakeKvmeta(num_blocks=1)
    await kvmeta.serve(bus)
    async with running_router(runtime_settings):
        await client.submit(generation("r"))
        assert not kvmeta.released
        await client.submit(generation("r"))
        await until(lambda: kvmeta.released)
    assert len(kvmeta.requests) == 2


async def test_goes_on_after_a_broker_restart(runtime_settings, nats_server, fleet, client):
    async with running_router(runtime_settings):
        await client.submit(generation("before"))
        await nats_server.restart()
        submitted = await client.submit(generation("after"))
        assert submitted.bucket == "lt16k"
        assert await client.place("after") in ("d0", "d1")
    assert {job.generation.request_id for job in await client.jobs()} == {"before", "after"}


@pytest.mark.parametrize("is_constrained", [False, True], ids=["in the match", "in the grammar"])
async def test_a_cancel_gives_the_lease_back(runtime_settings, bus, fleet, client, is_constrained):
    kvmeta = FakeKvmeta(num_blocks=1)
    if not is_constrained:
        kvmeta.may_answer.clear()
    await kvmeta.serve(bus)
    await FakeGrammar(delay_s=600.0).serve(bus)
    constraint = generation_pb2.Constraint(kind="CONSTRAINT_KIND_REGEX", source="a")
    fields = {"constraint": constraint} if is_constrained else {}
    async with running_router(runtime_settings) as router:
        submitting = asyncio.create_task(client.submit(generation("gone", **fields)))
        await until(lambda: kvmeta.requests)
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
        await until(lambda: "gone" in router._cancelled)
        kvmeta.may_answer.set()
        with pytest.raises(Cancelled):
            await soon(submitting)
        await until(lambda: kvmeta.released)
        assert kvmeta.released == ["lease-1"]
    assert await client.jobs() == []
