"""Images of a submission reach a vision instance each, and their embeddings the job."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from rorqual_cli.chaos.relay import open_relay
from rorqual_policy import ImageSpan, block_keys, image_work
from rorqual_proto.v1 import generation_pb2, load_pb2, router_pb2, tensor_pb2, vision_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import (
    Cancelled,
    Draining,
    InvalidRequest,
    NoCapacity,
    StaleTicket,
    Unavailable,
)

from tests.support.waiting import soon, until

from .conftest import FakeGrammar, FakeKvmeta, running_router
from .test_submit import TOKENS, generation

STEP = 10_000


@dataclass
class FakeVision:
    """Instances that answer with a ticket of their own, or fail with `errors`."""

    bus: Bus
    fleet: Any
    delay_s: float = 0.0
    errors: dict[str, Exception] = field(default_factory=dict)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    num_tokens: int = 20

    async def add(self, name: str, queued: int = 0, *, is_there: bool = True) -> None:
        self.fleet.reports[name] = load_pb2.LoadReport(
            service="vision",
            instance_id=name,
            incarnation=1,
            vision=load_pb2.VisionLoad(queued_patches=queued, step_patches=STEP),
        )
        await self.fleet.say()
        if is_there:
            await self.bus.serve(
                subjects.vision_encode_at(name),
                vision_pb2.VisionEncodeRequest,
                vision_pb2.VisionEncodeReply,
                lambda request, _context: self._answer(name, request),
                name=f"encode-{name}",
            )

    async def _answer(self, name: str, request: Any) -> vision_pb2.VisionEncodeReply:
        self.asked.append((name, request.image_digest))
        await asyncio.sleep(self.delay_s)
        if name in self.errors:
            raise self.errors[name]
        assert request.pixels.owner_id == "pixels"
        ticket = tensor_pb2.TensorTicket(owner_id=name, size_bytes=8)
        return vision_pb2.VisionEncodeReply(
            encoded=vision_pb2.VisionEncoded(
                embeddings=ticket, num_tokens=self.num_tokens, image_digest=request.image_digest
            )
        )


@pytest.fixture
def vision(bus, fleet):
    return FakeVision(bus, fleet)


def image(first: int, digest: bytes = b"a" * 32, num_patches: int = 180) -> Any:
    return generation_pb2.PromptImage(
        first_token=first,
        num_tokens=20,
        digest=digest,
        num_patches=num_patches,
        pixels=tensor_pb2.TensorTicket(owner_id="pixels"),
        param=f"messages[{first}]",
    )


def seeing(*images: Any, **fields: Any) -> Any:
    return generation(images=images, **fields)


async def test_a_job_carries_an_embedding_for_each_image(
    runtime_settings, bus, fleet, client, vision
):
    kvmeta = FakeKvmeta()
    await kvmeta.serve(bus)
    await vision.add("v1")
    async with running_router(runtime_settings):
        await client.submit(*(seeing(image(0), image(200, b"b" * 32), choice=i) for i in range(2)))
    jobs = await client.jobs()
    assert len(jobs) == 2
    for job in jobs:
        assert [ticket.owner_id for ticket in job.image_embeddings] == ["v1", "v1"]
    assert sorted(digest[:1] for _, digest in vision.asked) == [b"a", b"b"]
    spans = [ImageSpan(0, 20, b"a" * 32), ImageSpan(200, 20, b"b" * 32)]
    names = {"fingerprint": "engine-fingerprint", "namespace": "tenant"}
    keys = block_keys(TOKENS, images=spans, **names)
    assert kvmeta.requests[0].packed_block_keys == b"".join(keys)


async def test_what_the_store_covers_is_not_encoded(runtime_settings, bus, fleet, client, vision):
    """But the last block of a match may be run again."""
    await FakeKvmeta(num_blocks=2).serve(bus)
    await vision.add("v1")
    async with running_router(runtime_settings):
        await client.submit(seeing(image(0), image(108, b"b" * 32), image(109 + 20, b"c" * 32)))
    (job,) = await client.jobs()
    assert [ticket.owner_id for ticket in job.image_embeddings] == ["", "", "v1"]
    assert vision.asked == [("v1", b"c" * 32)]


async def test_images_spread_by_patches_outstanding(runtime_settings, bus, fleet, client, vision):
    vision.delay_s = 0.3
    for name in ("v1", "v2", "v3"):
        await vision.add(name)
    work = 6000
    assert image_work(work) > STEP
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        images = [image(30 * i, bytes([i]) * 32, work) for i in range(6)]
        await client.submit(seeing(*images))
    assert sorted(name for name, _ in vision.asked) == ["v1", "v1", "v2", "v2", "v3", "v3"]


async def test_a_full_instance_is_avoided(runtime_settings, bus, fleet, client, vision):
    await vision.add("v1", queued=5 * STEP)
    await vision.add("v2")
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        await client.submit(seeing(*(image(30 * i, bytes([i]) * 32) for i in range(5))))
    assert {name for name, _ in vision.asked} == {"v2"}


@pytest.mark.parametrize("error", [Draining(), Unavailable("gone"), NoCapacity("full"), None])
async def test_another_instance_is_tried(runtime_settings, bus, fleet, client, vision, error):
    """None: it reports, and is not there."""
    await vision.add("v1", is_there=error is not None)
    await vision.add("v2", queued=3 * STEP)
    if error is not None:
        vision.errors = {"v1": error}
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        await client.submit(seeing(image(0)))
    (job,) = await client.jobs()
    assert [ticket.owner_id for ticket in job.image_embeddings] == ["v2"]


async def test_an_instance_that_dies_while_it_is_asked_is_not_waited_for(
    runtime_settings, bus, fleet, client, vision
):
    await vision.add("v1")
    await vision.add("v2", queued=3 * STEP)
    vision.delay_s = 600
    async with running_router(runtime_settings, silent_s=1.5) as router:
        await fleet.heard_by(router)
        submitting = asyncio.create_task(client.submit(seeing(image(0))))
        await until(lambda: vision.asked)
        assert [name for name, _ in vision.asked] == ["v1"]
        vision.delay_s = 0
        del fleet.reports["v1"]
        await soon(submitting)
    (job,) = await client.jobs()
    assert [ticket.owner_id for ticket in job.image_embeddings] == ["v2"]


async def test_an_instance_that_is_back_later_than_we_are_is_waited_for(
    runtime_settings, nats_server, fleet, client
):
    async with open_relay() as relay, running_router(runtime_settings, silent_s=1.5) as router:
        relay.target_port = port = int(nats_server.url.rpartition(":")[2])
        relayed = {"nats_url": f"nats://127.0.0.1:{relay.port}"}
        far = await Bus.connect(runtime_settings.model_copy(update=relayed), "vision")
        vision = FakeVision(far, fleet, delay_s=600)
        await vision.add("v1")
        await fleet.heard_by(router)
        submitting = asyncio.create_task(client.submit(seeing(image(0))))
        await until(lambda: vision.asked)
        vision.delay_s, relay.target_port = 0, 0
        await nats_server.kill()
        await nats_server.restart()
        await fleet.heard_by(router)
        assert not (await asyncio.wait({submitting}, timeout=2.0))[0], submitting
        relay.target_port = port
        await soon(submitting)
        await far.close()
    (job,) = await client.jobs()
    assert [ticket.owner_id for ticket in job.image_embeddings] == ["v1"]


async def test_an_image_that_can_not_be_encoded_names_its_field(
    runtime_settings, bus, fleet, client, vision
):
    kvmeta = FakeKvmeta(num_blocks=1)
    await kvmeta.serve(bus)
    await vision.add("v1")
    cases = [
        (InvalidRequest("no image"), InvalidRequest),
        (StaleTicket(), NoCapacity),
        (Unavailable("away"), Unavailable),
    ]
    async with running_router(runtime_settings) as router:
        await fleet.heard_by(router)
        for index, (error, expected) in enumerate(cases):
            vision.errors = {"v1": error}
            with pytest.raises(expected) as caught:
                await client.submit(seeing(image(130), request_id=f"r{index}"))
            assert caught.value.param == "messages[130]"
        vision.errors = {}
        vision.num_tokens = 19
        with pytest.raises(NoCapacity, match="another image"):
            await client.submit(seeing(image(130), request_id="odd"))
        await until(lambda: len(kvmeta.released) == 4)
    assert await client.jobs() == []
    assert kvmeta.released == ["lease-1"] * 4


async def test_without_vision_it_says_so(runtime_settings, fleet, client):
    async with running_router(runtime_settings, vision_absent_s=0.2):
        with pytest.raises(NoCapacity, match="no vision instance"):
            await client.submit(seeing(image(0)))


async def test_what_can_not_be_images_is_refused(runtime_settings, fleet, client, vision):
    await vision.add("v1")
    async with running_router(runtime_settings):
        for images in ([image(5), image(20)], [image(290)], [image(0, digest=b"")]):
            with pytest.raises(InvalidRequest, match=r"place|past"):
                await client.submit(seeing(*images))
        with pytest.raises(InvalidRequest, match="common images"):
            await client.submit(seeing(image(0)), seeing(choice=1))
    assert not vision.asked


async def test_a_grammar_that_fails_and_a_cancel_end_the_wait(
    runtime_settings, bus, fleet, client, vision
):
    vision.delay_s = 600
    await vision.add("v1")
    await FakeGrammar(InvalidRequest("no grammar")).serve(bus)
    constraint = generation_pb2.Constraint(kind=1, source="{}")
    async with running_router(runtime_settings):
        with pytest.raises(InvalidRequest, match="no grammar"):
            await client.submit(seeing(image(0), constraint=constraint))
        vision.asked.clear()
        waiting = asyncio.create_task(client.submit(seeing(image(0), request_id="r2")))
        await until(lambda: vision.asked)
        await bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="r2"))
        with pytest.raises(Cancelled):
            await soon(waiting)
