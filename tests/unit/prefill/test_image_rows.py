"""Rows of images land in their chunks, and embeddings that are gone are asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_policy.blocks import ImageSpan
from rorqual_prefill import convert
from rorqual_prefill.image_rows import ImageFetcher, PromptImages
from rorqual_proto.v1 import generation_pb2, prefill_pb2, tensor_pb2, vision_pb2
from rorqual_runtime.errors import NoCapacity, QueueTimeout, ServingError, Unavailable
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.tensors import TensorPlane

from tests.support.waiting import WAIT_S, until

SPANS = [ImageSpan(3, 5, b"a"), ImageSpan(8, 4, b"b"), ImageSpan(20, 10, b"a")]


def rows_of(spans: list[ImageSpan]) -> PromptImages:
    """Row values are the positions they belong to."""
    rows = [torch.arange(s.start, s.end).float().unsqueeze(1).expand(-1, 2) for s in spans]
    return PromptImages(spans, rows)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 40), max_size=6))
def test_chunks_together_hold_every_row_of_every_image_once(cuts: list[int]) -> None:
    images = rows_of(SPANS)
    borders = [0, *sorted(cuts), 40]
    found: list[int] = []
    for start, end in pairwise(borders):
        part = images.within(start, end)
        if part is None:
            continue
        assert part.values.shape == (len(part.rows), 2)
        assert part.rows.max() < end - start
        assert (part.values[:, 0].numpy() == part.rows + start).all()
        found += (part.rows + start).tolist()
    assert found == [position for span in SPANS for position in range(span.start, span.end)]


class FakeVision:
    """Answers with a ticket after as many failures as it is told."""

    def __init__(self, ticket: Any, failures: int = 0) -> None:
        self.ticket, self.failures = ticket, failures
        self.subjects: list[str] = []

    async def request(self, subject: str, message: Any, *_: Any, **__: Any) -> Any:
        self.subjects.append(subject)
        assert message.image_digest
        if len(self.subjects) <= self.failures:
            raise Unavailable("nobody there")
        return vision_pb2.VisionEncodeReply(
            encoded=vision_pb2.VisionEncoded(embeddings=self.ticket)
        )


@asynccontextmanager
async def plane() -> AsyncIterator[TensorPlane]:
    async with await TensorPlane.open(
        RuntimeSettings(shm_bytes=1 << 20), "vision-1", 1, "here"
    ) as tensors:
        yield tensors


async def published(tensors: TensorPlane, num_tokens: int = 4) -> Any:
    values = torch.arange(num_tokens * 2, dtype=torch.bfloat16).view(torch.uint8).numpy()
    return await tensors.publish(values.reshape(-1), dtype="bfloat16", shape=(num_tokens, 2))


async def fetched(
    vision: Any, tensors: TensorPlane, job: Any, first_row: int = 0
) -> PromptImages | None:
    async with ImageFetcher(vision, tensors, 100).holding(job, first_row, WAIT_S) as images:
        return images


def job_of(*images: tuple[int, bytes, Any]) -> Any:
    wire = prefill_pb2.PrefillJob()
    wire.generation.request_id, wire.generation.reply.recipe_id = "r", "recipe-1"
    for first, digest, ticket in images:
        wire.generation.images.append(
            generation_pb2.PromptImage(
                first_token=first,
                num_tokens=4,
                digest=digest,
                param="messages[0]",
                pixels=tensor_pb2.TensorTicket(owner_id="vision-2"),
            )
        )
        wire.image_embeddings.append(ticket)
    return convert.job_from_wire(wire)


async def test_embeddings_are_read_once_each_content() -> None:
    async with plane() as tensors:
        ticket = await published(tensors)
        vision = FakeVision(None)
        job = job_of((0, b"a", ticket), (10, b"a", ticket), (500, b"b", ticket))
        images = await fetched(vision, tensors, job)
        assert images is not None
        assert images.rows[0] is images.rows[1]
        assert images.rows[2][:, 0].tolist() == [0, 2, 4, 6]
        assert not vision.subjects


async def test_images_before_the_first_row_are_not_read() -> None:
    async with plane() as tensors:
        empty = tensor_pb2.TensorTicket()
        job = job_of((0, b"a", empty), (300, b"b", await published(tensors)))
        images = await fetched(FakeVision(None), tensors, job, 303)
        assert images is not None
        assert [span.start for span in images.spans] == [300]
        assert await fetched(FakeVision(None), tensors, job, 304) is None
        assert await fetched(FakeVision(None), tensors, job_of()) is None


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_what_is_gone_is_asked_for_at_its_owners_and_then_anywhere(failures: int) -> None:
    async with plane() as tensors:
        gone = await published(tensors)
        tensors.release(gone)
        vision = FakeVision(await published(tensors), failures)
        images = await fetched(vision, tensors, job_of((0, b"a", gone)))
        assert images is not None
        assert images.rows[0].shape == (4, 2)
        places = ["encode.vision-1", "encode.vision-2", "encode"]
        assert [s.partition("vision.")[2] for s in vision.subjects] == places[: failures + 1]


async def test_an_image_that_nobody_has_names_its_field() -> None:
    async with plane() as tensors:
        vision = FakeVision(None, failures=9)
        job = job_of((0, b"a", tensor_pb2.TensorTicket()))
        with pytest.raises(NoCapacity) as caught:
            await fetched(vision, tensors, job)
        assert caught.value.param == "messages[0]"


async def test_embeddings_of_another_shape_are_not_used() -> None:
    async with plane() as tensors:
        wrong = await published(tensors, num_tokens=5)
        vision = FakeVision(wrong)
        with pytest.raises(ServingError, match="embeddings of 4 tokens"):
            await fetched(vision, tensors, job_of((0, b"a", wrong)))


async def test_rows_held_are_bounded_and_who_came_first_goes_first() -> None:
    """Each prompt here has 4 rows; 8 are held at most, and one that is larger runs alone."""
    async with plane() as tensors:
        ticket = await published(tensors)
        fetcher = ImageFetcher(FakeVision(None), tensors, max_rows=8)
        order: list[int] = []

        async def hold(index: int, *digests: bytes) -> None:
            job = job_of(*((4 * i, digest, ticket) for i, digest in enumerate(digests)))
            async with fetcher.holding(job, 0, WAIT_S):
                order.append(index)
                assert fetcher.num_rows <= 8 or len(digests) > 2
                await asyncio.sleep(0.2 if index == 0 else 0.02)

        large = asyncio.create_task(hold(0, b"a", b"b", b"c"))
        await until(lambda: fetcher.num_rows == 12)
        with pytest.raises(QueueTimeout):
            async with fetcher.holding(job_of((0, b"x", ticket)), 0, 0.005):
                pass
        await asyncio.gather(
            large, *(hold(i, b"a", b"a") for i in range(1, 6)), hold(6, b"a", b"b")
        )
        assert order == list(range(7))
        assert fetcher.num_rows == 0


def test_decode_gets_digests_and_no_pixels() -> None:
    job = job_of((0, b"a", tensor_pb2.TensorTicket()))
    parts = convert.HandoverParts(b"", 0, 0, tensor_pb2.Payload(inline=b"x"), None, None, "f")
    offered = convert.handover_to_wire(job, parts).generation.images[0]
    assert offered.digest == b"a"
    assert not offered.HasField("pixels")
    assert job.generation.images[0].HasField("pixels")
    assert np.array([offered.first_token, offered.num_tokens]).tolist() == [0, 4]
