"""One recipe instance on a real broker: encode, tokens, recovery, cancel, expiry."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from rorqual_cli.chaos.relay import open_relay
from rorqual_proto.v1 import decode_pb2, generation_pb2, recipe_pb2, router_pb2, tensor_pb2
from rorqual_recipe import intake
from rorqual_runtime import subjects
from rorqual_runtime.errors import (
    Draining,
    NoCapacity,
    NotFound,
    ServingError,
    Unavailable,
    error_to_wire,
)
from rorqual_runtime.payload import get_payload, put_payload
from rorqual_runtime.service import open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.api_services import RunningRecipe, running_recipe
from tests.support.chat_model_dir import MODEL_ID, make_chat_model_dir
from tests.support.waiting import WAIT_S, until

GATEWAY_ID = "gateway-test"


class Peer:
    """Gateway, router and decode in one: sends requests and tokens, keeps the events."""

    def __init__(self, ctx, recipe: RunningRecipe) -> None:
        self.ctx = ctx
        self.recipe = recipe
        self.batches: list[recipe_pb2.EventBatch] = []
        self.cancels: list[router_pb2.CancelRequest] = []
        self.submitted: list[generation_pb2.Generation] = []
        self.dropped: list[decode_pb2.DropRunsRequest] = []
        self.repeats: list[list[str]] = []
        """Whose tokens were to be told again."""
        self.tokens: dict[str, decode_pb2.TokenDelta] = {}
        """Of requests of which decode has more than it has sent."""
        self.lost: set[str] = set()
        """Requests that decode does not know."""

    async def start(self) -> None:
        bus = self.ctx.bus
        events = subjects.gateway_events(GATEWAY_ID)
        await bus.subscribe(events, recipe_pb2.EventBatch, self._on_events)
        await bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, self._on_cancel)
        drop = subjects.decode_drop_runs("decode-x")
        await bus.subscribe(drop, decode_pb2.DropRunsRequest, self._on_drop)
        await bus.subscribe(
            subjects.decode_repeat(), decode_pb2.RepeatTokensRequest, self._on_repeat
        )
        await bus.serve(
            subjects.decode_resend("decode-x"),
            decode_pb2.ResendRequest,
            decode_pb2.ResendReply,
            self._on_resend,
            name="resend",
        )
        await bus.serve(
            subjects.router_submit(),
            router_pb2.SubmitRequest,
            router_pb2.SubmitReply,
            self._on_submit,
            name="submit",
        )

    async def _on_resend(self, request, context):
        if request.request_id in self.lost:
            raise NotFound("no such tokens are kept here")
        known = self.tokens.get(request.request_id)
        if known is None:
            known = delta(request.request_id, request.from_seq)  # nothing new
        return decode_pb2.ResendReply(delta=known)

    async def _on_submit(self, request, context):
        self.submitted += request.generations
        return router_pb2.SubmitReply(submitted=router_pb2.Submitted(bucket="lt16k"))

    async def _on_drop(self, request, context) -> None:
        self.dropped.append(request)

    async def _on_repeat(self, request, context) -> None:
        self.repeats.append(list(request.recipe_ids))

    async def _on_events(self, batch, context) -> None:
        self.batches.append(batch)

    async def _on_cancel(self, request, context) -> None:
        self.cancels.append(request)

    async def encode(self, request_id: str, **fields: object) -> recipe_pb2.EncodeReply:
        return await self.ask(await self.request(request_id, **fields))

    async def request(self, request_id: str, **fields: object) -> recipe_pb2.EncodeRequest:
        body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "Hello"}], **fields}
        return recipe_pb2.EncodeRequest(
            request_id=request_id,
            protocol=recipe_pb2.PROTOCOL_CHAT_COMPLETIONS,
            body=await put_payload(self.ctx.tensors, json.dumps(body).encode()),
            tenant="t",
            gateway_id=GATEWAY_ID,
        )

    async def ask(self, request: recipe_pb2.EncodeRequest) -> recipe_pb2.EncodeReply:
        return await self.ctx.bus.request(
            subjects.recipe_encode(), request, recipe_pb2.EncodeReply, timeout_s=WAIT_S
        )

    async def send(
        self, *deltas: decode_pb2.TokenDelta, incarnation: int = 1, decode_id: str = "decode-x"
    ) -> None:
        batch = decode_pb2.TokenBatch(decode_id=decode_id, incarnation=incarnation, deltas=deltas)
        await self.ctx.bus.publish(subjects.recipe_tokens(self.recipe.ctx.instance_id), batch)

    async def events(self, count: int) -> list[recipe_pb2.StreamEvents]:
        await until(lambda: len(self._streams()) >= count, "the events")
        return self._streams()

    def _streams(self) -> list[recipe_pb2.StreamEvents]:
        return [stream for batch in self.batches for stream in batch.streams]


@pytest_asyncio.fixture
async def peer(
    request: pytest.FixtureRequest, runtime_settings: RuntimeSettings, tmp_path: Path
) -> AsyncIterator[Peer]:
    """Its parameter, if any, is how long a silent stream lives."""
    model_dir = make_chat_model_dir(tmp_path / "model", max_position_embeddings=200_000)
    async with (
        running_recipe(
            runtime_settings,
            model_dir,
            stall_probe_s=0.3,
            resend_timeout_s=0.3,
            resend_attempts=2,
            stream_ttl_s=getattr(request, "param", 600.0),
        ) as recipe,
        open_service("peer", runtime_settings) as ctx,
    ):
        peer = Peer(ctx, recipe)
        await peer.start()
        yield peer


def delta(request_id: str, seq: int, *ids: int, **fields: object) -> decode_pb2.TokenDelta:
    return decode_pb2.TokenDelta(
        request_id=request_id,
        seq=seq,
        token_ids=ids,
        **fields,  # type: ignore[arg-type]
    )


async def test_one_batch_of_tokens_is_one_batch_of_events(peer: Peer) -> None:
    for request_id in ("a", "b", "c"):
        await peer.encode(request_id, stream=True)
    await peer.send(*(delta(request_id, 0, 300) for request_id in ("a", "b", "c", "unknown")))
    streams = await peer.events(3)
    assert [stream.request_id for stream in streams] == ["a", "b", "c"]
    assert len(peer.batches) == 1


async def test_long_prompts_travel_by_ticket_and_the_loop_stays_free(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    plain_encode = intake.encode_request

    def encode(body, *args, **options):
        if len(body) > 100_000:
            begun.set()
            assert may_end.wait(WAIT_S), "nobody else was answered meanwhile"
        return plain_encode(body, *args, **options)

    monkeypatch.setattr(intake, "encode_request", encode)
    long = [{"role": "user", "content": "Hello, world! " * 20_000}]
    encoding = asyncio.create_task(peer.encode("long", messages=long, n=2))
    await until(begun.is_set)
    await peer.encode("short")
    may_end.set()
    generations = (await encoding).encoded.generations
    assert [generation.choice_index for generation in generations] == [0, 1]
    for generation in generations:
        data = await get_payload(peer.ctx.tensors, generation.prompt, keep=True)
        assert len(np.frombuffer(data, "<i4")) == generation.num_prompt_tokens
    await peer.ctx.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="long"))
    await until(lambda: peer.recipe.ctx.tensors.num_held == 0)


async def test_a_long_body_is_read_again_when_the_first_reply_was_lost(peer: Peer) -> None:
    long = [{"role": "user", "content": "Hello, world! " * 20_000}]
    request = await peer.request("again", messages=long)
    assert request.body.HasField("ticket")
    first, second = await peer.ask(request), await peer.ask(request)
    assert first.HasField("encoded") and second.HasField("encoded")
    assert peer.recipe.service.num_active == 1
    await until(lambda: peer.recipe.ctx.tensors.num_held == 1, "the first prompt to be freed")


async def test_cancel_frees_everything_even_before_encode_ends(peer: Peer) -> None:
    long = [{"role": "user", "content": "Hello, world! " * 20_000}]
    await peer.encode("gone", messages=long)
    assert peer.recipe.ctx.tensors.num_held == 1
    early = router_pb2.CancelRequest(request_id="early", reason="client_gone")
    await peer.ctx.bus.publish(subjects.cancel(), early)
    await peer.ctx.bus.publish(
        subjects.cancel(), router_pb2.CancelRequest(request_id="gone", reason="client_gone")
    )
    reply = await peer.encode("early", messages=long)
    assert reply.error.http_status == 499
    assert peer.recipe.service.num_active == 0
    assert peer.recipe.ctx.tensors.num_held == 0


@pytest.mark.parametrize("peer", [2.0], indirect=True)
async def test_a_stream_nobody_ends_expires(peer: Peer) -> None:
    await peer.encode("forgotten")
    assert peer.recipe.service.num_active == 1
    await until(lambda: not peer.recipe.service.num_active)


async def test_a_restarted_decode_is_followed_and_its_former_self_ignored(peer: Peer) -> None:
    await peer.encode("r", stream=True, stream_options={"include_usage": True})
    await peer.send(delta("r", 0, 300))
    await peer.send(delta("r", 0, 300, 301), incarnation=2)
    await peer.send(delta("r", 2, 555), incarnation=1)
    await peer.send(
        delta("r", 2, 302, finish_reason=decode_pb2.FINISH_REASON_LENGTH), incarnation=2
    )
    streams = await peer.events(3)
    assert streams[-1].done
    assert streams[-1].usage.completion_tokens == 3
    assert list(streams[-1].finish_reasons) == ["length"]
    assert [stream.seq for stream in streams] == [0, 1, 2]


def _tokens(generation: generation_pb2.Generation) -> list[int]:
    return np.frombuffer(generation.prompt.inline, "<i4").tolist()


async def _first(peer: Peer, request_id: str, **fields: object) -> generation_pb2.Generation:
    encoded = (await peer.encode(request_id, stream=True, **fields)).encoded
    return encoded.generations[0]


async def _ends_well(peer: Peer, request_id: str, run: int, seq: int) -> None:
    """The new run gives the rest, from another instance."""
    last = delta(request_id, seq, 303, run=run, finish_reason=decode_pb2.FINISH_REASON_LENGTH)
    await peer.send(last, decode_id="decode-y")
    await until(lambda: any(s.done for s in peer._streams()), "the end")
    end = peer._streams()[-1]
    assert (end.error.http_status, end.usage.completion_tokens) == (0, seq + 1)
    assert not peer.cancels


async def test_an_answer_that_came_while_its_recipe_was_cut_off_is_told_again(
    runtime_settings: RuntimeSettings, tmp_path: Path
) -> None:
    model_dir = make_chat_model_dir(tmp_path / "model")
    async with open_relay() as relay, open_service("peer", runtime_settings) as ctx:
        relay.target_port = int(runtime_settings.nats_url.rpartition(":")[2])
        relayed = {"nats_url": f"nats://127.0.0.1:{relay.port}"}
        async with running_recipe(runtime_settings.model_copy(update=relayed), model_dir) as recipe:
            peer = Peer(ctx, recipe)
            await peer.start()
            await peer.encode("r", stream=True)
            relay.freeze()
            ends = decode_pb2.FINISH_REASON_LENGTH
            peer.tokens["r"] = delta("r", 0, 300, 301, 302, finish_reason=ends)
            await peer.send(peer.tokens["r"])  # into the void
            await until(lambda: peer.repeats, "it to be back")
            assert peer.repeats == [[recipe.ctx.instance_id]]
            await peer.send(delta("r", 2, 302, finish_reason=ends))
            await until(lambda: any(stream.done for stream in peer._streams()), "the end")
            assert peer._streams()[-1].usage.completion_tokens == 3


async def test_tokens_that_decode_no_longer_has_are_generated_again(peer: Peer) -> None:
    before = await _first(peer, "lost", temperature=0.7, max_tokens=9)
    peer.lost.add("lost")
    await peer.send(delta("lost", 0, 300))
    await peer.send(delta("lost", 5, 301))
    await until(lambda: peer.submitted, "the generation to be submitted")
    (again,) = peer.submitted
    assert _tokens(again) == [*_tokens(before), 300]
    assert (again.num_prompt_tokens, again.num_output_tokens) == (before.num_prompt_tokens + 1, 1)
    assert (again.sampling, again.reply) == (before.sampling, before.reply)
    assert again.run > before.run
    await peer.send(delta("lost", 1, 555))  # of the old run
    await until(lambda: peer.dropped, "the old instance to be told")
    assert peer.dropped[0].before_run == again.run
    await _ends_well(peer, "lost", again.run, 1)


async def test_an_instance_that_is_gone_is_noticed_and_its_work_goes_on(peer: Peer) -> None:
    """Two choices, and a prompt too long to travel inside a message."""
    text = [{"role": "user", "content": "Hello, world! " * 8_000}]
    request = await peer.encode("gone", messages=text, n=2, stream=True)
    first = request.encoded.generations[0]
    tokens = [delta("gone", 0, 300, 301, choice_index=0), delta("gone", 0, 302, choice_index=1)]
    await peer.send(*tokens, decode_id="decode-gone")
    await until(lambda: len(peer.submitted) == 2, "both choices to be submitted")
    by_index = {generation.choice_index: generation for generation in peer.submitted}
    prompt = await get_payload(peer.ctx.tensors, first.prompt, keep=True)
    for index, output in ((0, [300, 301]), (1, [302])):
        data = await get_payload(peer.ctx.tensors, by_index[index].prompt, keep=True)
        assert data == prompt + np.array(output, "<i4").tobytes()
        assert by_index[index].num_output_tokens == len(output)
    seeds = [generation.sampling.seed for generation in request.encoded.generations]
    assert [by_index[index].sampling.seed for index in (0, 1)] == seeds
    await peer.ctx.bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="gone"))
    await until(lambda: not peer.recipe.ctx.tensors.num_held, "every prompt to be free")


@pytest.mark.parametrize("error", [Unavailable("it shut down"), Draining()])
async def test_an_instance_that_gives_up_is_replaced(peer: Peer, error: ServingError) -> None:
    await _first(peer, "given-up")
    await peer.send(delta("given-up", 0, 300))
    await peer.send(delta("given-up", 1, error=error_to_wire(error)))
    await until(lambda: peer.submitted, "the generation to be submitted")
    await _ends_well(peer, "given-up", peer.submitted[0].run, 1)


async def test_a_failed_choice_fails_the_request_once(peer: Peer) -> None:
    await peer.encode("two", n=2)
    failed = delta("two", 0, error=error_to_wire(NoCapacity("no page is free", retry_after_s=4)))
    await peer.send(failed, failed)
    streams = await peer.events(1)
    await asyncio.sleep(0.1)
    assert len(peer.batches) == 1
    assert (streams[0].error.http_status, streams[0].error.retry_after_s) == (503, 4)


async def test_errors_from_elsewhere_are_rendered_and_forget_the_stream(peer: Peer) -> None:
    await peer.encode("refused")
    request = recipe_pb2.RenderErrorRequest(
        request_id="refused",
        protocol=recipe_pb2.PROTOCOL_CHAT_COMPLETIONS,
        error=error_to_wire(NoCapacity("full")),
    )
    reply = await peer.ctx.bus.request(
        subjects.recipe_render_error(), request, recipe_pb2.ProtocolError, timeout_s=WAIT_S
    )
    assert reply.http_status == 503
    assert json.loads(reply.body_json)["error"]["message"] == "full"
    assert peer.recipe.service.num_active == 0


async def test_the_load_report_counts_streams(peer: Peer) -> None:
    await peer.encode("one")
    assert peer.recipe.ctx.load_report().num_active_requests == 1


@pytest.mark.parametrize("protocol", [0, 99])
async def test_an_unknown_protocol_is_an_error_not_a_hang(peer: Peer, protocol: int) -> None:
    request = recipe_pb2.EncodeRequest(
        request_id="x",
        protocol=protocol,  # type: ignore[arg-type]
        body=tensor_pb2.Payload(inline=b"{}"),
    )
    with pytest.raises(Exception, match="not supported"):
        await peer.ctx.bus.request(
            subjects.recipe_encode(), request, recipe_pb2.EncodeReply, timeout_s=WAIT_S
        )
