"""From an image's source to embeddings, over the bus and the tensor plane."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rorqual_engine.models.deepseek.image_size import ImageRules
from rorqual_engine.models.deepseek.vision import VisionTower
from rorqual_proto.v1 import load_pb2, router_pb2, tensor_pb2, vision_pb2
from rorqual_runtime import subjects
from rorqual_runtime.errors import Cancelled, Corrupt, InvalidRequest, NoCapacity, StaleTicket
from rorqual_runtime.settings import RuntimeSettings
from rorqual_vision.picture import DecodeLimits
from rorqual_vision.prepare import fit

from tests.support.pictures import picture, picture_file
from tests.support.service_process import service_process
from tests.support.waiting import WAIT_S, until
from tests.support.web_server import answer, web_server

from .conftest import RunVision, VisionClient

LOCAL = ("127.0.0.0/8",)


def expected_rows(tower_dir: Path, config: dict[str, Any], data: bytes) -> torch.Tensor:
    rules = ImageRules.from_config(config["vision_config"])
    tower = VisionTower.load(tower_dir, config, torch.device("cpu"), torch.bfloat16)
    return tower.encode([fit(data, "", rules, DecodeLimits()).pixels])[0]


async def test_embeddings_are_those_of_the_tower_whatever_shares_the_step(
    run_vision: RunVision, client: VisionClient, tower_dir: Path, tower_config: dict[str, Any]
) -> None:
    files = [picture_file(seed, 60 + 31 * seed, 140 - 17 * seed) for seed in range(5)]
    async with run_vision() as vision:
        prepared = await asyncio.gather(*(client.prepare(data) for data in files))
        encoded = await asyncio.gather(*(client.encode(image) for image in prepared))
        for data, image, result in zip(files, prepared, encoded, strict=True):
            rows = await client.rows(result)
            assert torch.equal(rows, expected_rows(tower_dir, tower_config, data))
            assert image.num_tokens == image.num_rows * (image.num_columns + 1) + 2 == len(rows)
            assert image.num_patches * 196 * 3 == image.pixels.size_bytes
            assert result.image_digest == image.image_digest
        assert vision.eyes.encoder.num_steps < 5


async def test_the_same_image_is_encoded_once_and_keeps_its_ticket(
    run_vision: RunVision, client: VisionClient
) -> None:
    lossless = io.BytesIO()
    picture(1).save(lossless, "WEBP", lossless=True)
    async with run_vision() as vision:
        prepared = [await client.prepare(data) for data in (picture_file(1), lossless.getvalue())]
        assert prepared[0].image_digest == prepared[1].image_digest
        encoded = await asyncio.gather(*(client.encode(p) for p in prepared * 3))
        assert len({e.embeddings.SerializeToString()[:20] for e in encoded}) == 1
        assert (vision.eyes.cache.num_misses, vision.eyes.cache.num_hits) == (1, 5)
        assert vision.eyes.encoder.num_steps == 1
        other = await client.encode(await client.prepare(picture_file(2)))
        assert not torch.equal(await client.rows(other), await client.rows(encoded[0]))


async def test_an_instance_that_knows_the_image_needs_no_pixels(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision(), run_vision("vision-2"):
        prepared = await client.prepare(picture_file(1))
        first = await client.encode(prepared, "vision-1")
        other = await client.encode(prepared, "vision-2")
        assert {first.embeddings.owner_id, other.embeddings.owner_id} == {"vision-1", "vision-2"}
        assert torch.equal(await client.rows(first), await client.rows(other))
        await client.tensors.release_remote(prepared.pixels)
        again = await client.encode(prepared, "vision-1")
        assert torch.equal(await client.rows(again), await client.rows(first))
        unseen = await client.prepare(picture_file(2))
        await client.tensors.release_remote(unseen.pixels)
        with pytest.raises(StaleTicket):
            await client.encode(unseen, "vision-1")


async def test_an_image_by_ticket_is_read_again_when_the_first_reply_was_lost(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision():
        ticket = await client.tensors.publish(picture_file(1), lease_s=2 * WAIT_S)
        image = tensor_pb2.Payload(ticket=ticket)
        first, second = await client.prepare(image=image), await client.prepare(image=image)
        assert first.image_digest == second.image_digest


async def test_a_file_can_be_encoded_in_one_request(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision():
        request = vision_pb2.VisionEncodeRequest(
            request_id="r", image=tensor_pb2.Payload(inline=picture_file(1))
        )
        reply = await client.bus.request(
            subjects.vision_encode(), request, vision_pb2.VisionEncodeReply, timeout_s=WAIT_S
        )
        prepared = await client.prepare(picture_file(1))
        assert reply.encoded.image_digest == prepared.image_digest
        assert reply.encoded.num_tokens == prepared.num_tokens


async def test_images_by_url_come_from_where_settings_allow(
    run_vision: RunVision, client: VisionClient
) -> None:
    pages = {"/a.png": answer(picture_file(1)), "/b": answer(b"", status="404 Not Found")}
    async with web_server(pages) as server:
        async with run_vision(allowed_networks=LOCAL):
            found = await client.prepare(url=server.url("/a.png"), param="messages[0].content[1]")
            assert found.image_digest == (await client.prepare(picture_file(1))).image_digest
            with pytest.raises(InvalidRequest, match="status 404") as caught:
                await client.prepare(url=server.url("/b"), param="messages[0].content[1]")
            assert caught.value.param == "messages[0].content[1]"
        num_requests = len(server.requests)
        async with run_vision("vision-3"):
            with pytest.raises(InvalidRequest, match="not a public one") as caught:
                await client.prepare(url=server.url("/a.png"), param="input[0].content[0]")
            assert caught.value.param == "input[0].content[0]"
        assert len(server.requests) == num_requests


async def test_fetches_have_their_own_bound(
    run_vision: RunVision, client: VisionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that come along do not wait for servers that are slow."""
    monkeypatch.setattr("rorqual_vision.eyes._FETCH_TURN_S", 0.2)
    async with (
        web_server({"/never": b"", "/a.png": answer(picture_file(1))}) as server,
        run_vision(allowed_networks=LOCAL, max_fetches=1, fetch_timeout_s=600.0),
    ):
        slow = asyncio.create_task(client.prepare(url=server.url("/never"), request_id="slow"))
        await until(lambda: server.requests)
        with pytest.raises(NoCapacity, match="being fetched"):
            await client.prepare(url=server.url("/a.png"))
        await client.prepare(picture_file(1))
        await client.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="slow"))
        with pytest.raises(Cancelled):
            await slow
        await client.prepare(url=server.url("/a.png"))


async def test_a_broken_image_names_its_field(run_vision: RunVision, client: VisionClient) -> None:
    async with run_vision(max_image_bytes=100_000, max_edge=500):
        cases = {
            "not a png": b"hello",
            "empty": b"",
            "can't be read": picture_file(kind="JPEG")[:400],
            "no edge may be longer": picture_file(1, 600, 10),
        }
        for said, data in cases.items():
            with pytest.raises(InvalidRequest, match=said) as caught:
                await client.prepare(data, param="messages[3].content[0]")
            assert caught.value.param == "messages[3].content[0]"
        big = io.BytesIO()
        Image.effect_noise((400, 400), 90).save(big, "PNG")
        with pytest.raises(Exception, match="exceed the limit") as too_large:
            await client.prepare(big.getvalue(), param="messages[3]")
        assert too_large.value.param == "messages[3]"  # type: ignore[attr-defined]


async def test_pixels_that_are_not_what_they_are_called_are_not_cached(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision() as vision:
        first = await client.prepare(picture_file(1))
        other = await client.prepare(picture_file(2))
        with pytest.raises(Corrupt):
            await client.encode(first, image_digest=other.image_digest)
        odd = await client.tensors.publish(bytes(3 * 15 * 14), shape=(15, 14, 3))
        with pytest.raises(InvalidRequest, match="whole patches"):
            await client.encode(first, pixels=odd, image_digest=b"x")
        huge = await client.tensors.publish(bytes(3 * 14 * 14 * 400), shape=(14, 14 * 400, 3))
        with pytest.raises(InvalidRequest, match="more than this model takes"):
            await client.encode(first, pixels=huge, image_digest=b"y")
        assert vision.eyes.cache.num_bytes == 0
        assert len(await client.rows(await client.encode(other))) == other.num_tokens


async def test_leases_end_and_the_arena_is_empty_again(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision(pixels_lease_s=2.0, embeddings_lease_s=2.0) as vision:
        prepared = await client.prepare(picture_file(1))
        encoded = await client.encode(prepared)
        assert vision.tensors.num_held == 2
        await until(lambda: vision.tensors.num_held == 0)
        with pytest.raises(StaleTicket):
            await client.rows(encoded)
        renewed = await client.prepare(picture_file(1))
        again = await client.encode(renewed)
        assert vision.eyes.cache.num_misses == 1
        assert len(await client.rows(again)) == renewed.num_tokens


async def test_what_a_full_instance_refuses_and_a_cancelled_request(
    run_vision: RunVision, client: VisionClient
) -> None:
    async with run_vision(max_waiting_images=1):
        results = await asyncio.gather(
            *(client.prepare(picture_file(i, 300, 300)) for i in range(12)), return_exceptions=True
        )
        assert {type(r) for r in results} == {vision_pb2.VisionPrepared, NoCapacity}
        await client.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="r"))
        await client.bus.connection.flush()
        with pytest.raises(Cancelled):
            await client.prepare(picture_file(1))


async def test_as_a_process_it_reports_patches_and_drains(
    runtime_settings: RuntimeSettings, client: VisionClient, tower_dir: Path, tmp_path: Path
) -> None:
    env = {"RORQUAL_MODEL_DIR": str(tower_dir), "RORQUAL_VISION_STEP_PATCHES": "777"}
    async with service_process(
        "vision", client.bus, nats_url=runtime_settings.nats_url, home=tmp_path / "v", env=env
    ) as service:
        encoded = await client.encode(await client.prepare(picture_file(1)))
        assert len(await client.rows(encoded)) == encoded.num_tokens
        report: load_pb2.LoadReport | None = None

        async def on_load(message: Any, _context: Any) -> None:
            nonlocal report
            report = message

        await client.bus.subscribe(subjects.all_loads(), load_pb2.LoadReport, on_load)
        await until(lambda: report is not None and report.vision.patches_per_s > 0)
        assert report is not None
        assert (report.service, report.vision.step_patches) == ("vision", 777)
        assert report.vision.queued_patches == 0
        assert await service.stop() == 0
