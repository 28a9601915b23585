"""Request and reply over a real broker: deadlines, typed errors, bounds."""

from __future__ import annotations

import asyncio
import time

import pytest
from rorqual_proto.v1 import recipe_pb2, router_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.errors import (
    ContextTooLong,
    DeadlineExceeded,
    Draining,
    Internal,
    InvalidRequest,
    NoCapacity,
    RequestTooLarge,
    Unavailable,
)
from rorqual_runtime.settings import RuntimeSettings

from tests.support.bus import answer_place, ask_place, serve_place
from tests.support.waiting import WAIT_S, soon, until


async def test_a_request_is_answered(server_bus: Bus, caller_bus: Bus) -> None:
    await serve_place(server_bus, answer_place)
    assert await ask_place(caller_bus, "7") == "decode-7"


async def test_a_typed_error_arrives_with_its_data(server_bus: Bus, caller_bus: Bus) -> None:
    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        raise ContextTooLong(9000, 8192)

    await serve_place(server_bus, handler)
    with pytest.raises(ContextTooLong) as caught:
        await ask_place(caller_bus)
    assert (caught.value.prompt_tokens, caught.value.limit_tokens) == (9000, 8192)


async def test_an_error_arrives_where_the_reply_has_no_place_for_it(
    server_bus: Bus, caller_bus: Bus
) -> None:
    async def handler(_request: object, _context: MessageContext) -> recipe_pb2.ListModelsReply:
        raise InvalidRequest("no", "model")

    subject, types = subjects.recipe_models(), (recipe_pb2.ListModelsRequest,)
    await server_bus.serve(subject, *types, recipe_pb2.ListModelsReply, handler, name="models")
    with pytest.raises(InvalidRequest) as caught:
        await caller_bus.request(
            subject, recipe_pb2.ListModelsRequest(), recipe_pb2.ListModelsReply, timeout_s=WAIT_S
        )
    assert caught.value.param == "model"


async def test_a_bug_in_a_handler_is_internal_and_keeps_its_text_to_itself(
    server_bus: Bus, caller_bus: Bus
) -> None:
    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        raise RuntimeError("the user's secret")

    await serve_place(server_bus, handler)
    with pytest.raises(Internal) as caught:
        await ask_place(caller_bus)
    assert "secret" not in caught.value.message
    assert "RuntimeError" in caught.value.message


async def test_a_slow_handler_ends_at_the_callers_deadline_on_both_sides(
    server_bus: Bus, caller_bus: Bus
) -> None:
    ended = asyncio.Event()

    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        return router_pb2.PlaceReply()

    await serve_place(server_bus, handler)
    with pytest.raises(DeadlineExceeded):
        await soon(ask_place(caller_bus, timeout_s=0.5))
    await soon(ended.wait())


async def test_a_nested_request_inherits_the_nearer_deadline(
    server_bus: Bus, caller_bus: Bus
) -> None:
    seen: list[float] = []

    async def inner(_request: object, context: MessageContext) -> router_pb2.SubmitReply:
        seen.append(context.remaining_s(default=1e9))
        return router_pb2.SubmitReply(submitted=router_pb2.Submitted(bucket="lt16k"))

    async def outer(_request: object, context: MessageContext) -> router_pb2.PlaceReply:
        seen.append(context.remaining_s(default=1e9))
        await server_bus.request(
            subjects.router_submit(),
            router_pb2.SubmitRequest(),
            router_pb2.SubmitReply,
            timeout_s=60,
        )
        return router_pb2.PlaceReply(placement=router_pb2.Placement(decode_id="d"))

    types = (router_pb2.SubmitRequest, router_pb2.SubmitReply)
    await server_bus.serve(subjects.router_submit(), *types, inner, name="submit")
    await serve_place(server_bus, outer)
    await ask_place(caller_bus, timeout_s=WAIT_S)
    assert 0 < seen[1] <= seen[0] <= WAIT_S


async def test_a_handler_is_not_run_after_its_deadline(server_bus: Bus, caller_bus: Bus) -> None:
    calls = 0

    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        nonlocal calls
        calls += 1
        return router_pb2.PlaceReply()

    await serve_place(server_bus, handler)
    late = {"Rorqual-Timeout-S": "0", "Rorqual-Deadline-Unix-S": str(time.time())}
    msg = await caller_bus.connection.request(subjects.router_place(), b"", late, timeout_s=WAIT_S)
    reply = router_pb2.PlaceReply.FromString(msg.data)
    assert reply.error.code == DeadlineExceeded.code
    assert calls == 0


async def test_an_absent_service_is_waited_for(server_bus: Bus, caller_bus: Bus) -> None:
    asking = asyncio.create_task(ask_place(caller_bus, "1"))
    await asyncio.sleep(0.3)
    assert not asking.done()
    await serve_place(server_bus, answer_place)
    assert await asking == "decode-1"


async def test_a_service_that_stays_absent_is_unavailable(caller_bus: Bus) -> None:
    with pytest.raises(Unavailable, match=r"router\.place"):
        await soon(ask_place(caller_bus, timeout_s=0.4))


async def test_handlers_run_concurrently_and_the_surplus_is_refused_at_once(
    server_bus: Bus, caller_bus: Bus
) -> None:
    release, started = asyncio.Event(), []

    async def handler(
        request: router_pb2.PlaceRequest, context: MessageContext
    ) -> router_pb2.PlaceReply:
        started.append(request.request_id)
        await release.wait()
        return await answer_place(request, context)

    await serve_place(server_bus, handler, max_in_flight=4)
    held = [asyncio.create_task(ask_place(caller_bus, str(i))) for i in range(4)]
    await until(lambda: len(started) == 4)
    with pytest.raises(NoCapacity):
        await ask_place(caller_bus, "surplus")
    assert not any(task.done() for task in held)
    release.set()
    assert await asyncio.gather(*held) == [f"decode-{i}" for i in range(4)]


async def test_an_oversize_payload_is_refused_before_it_is_sent(caller_bus: Bus) -> None:
    body = recipe_pb2.StreamEvents(data=[b"x" * (2 << 20)])
    batch = recipe_pb2.EventBatch(streams=[body])
    with pytest.raises(RequestTooLarge) as caught:
        await caller_bus.publish(subjects.gateway_events("gateway-1"), batch)
    assert caught.value.size > caught.value.limit > 0
    assert caller_bus.is_connected


async def test_an_oversize_reply_becomes_an_error(server_bus: Bus, caller_bus: Bus) -> None:
    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        return router_pb2.PlaceReply(placement=router_pb2.Placement(reason="x" * (2 << 20)))

    await serve_place(server_bus, handler)
    with pytest.raises(RequestTooLarge):
        await ask_place(caller_bus)


async def test_requests_that_can_not_be_parsed_are_answered(
    server_bus: Bus, caller_bus: Bus
) -> None:
    await serve_place(server_bus, answer_place)
    msg = await caller_bus.connection.request(
        subjects.router_place(), b"\xff\xff\xff", {}, timeout_s=WAIT_S
    )
    assert router_pb2.PlaceReply.FromString(msg.data).HasField("error")
    assert await ask_place(caller_bus, "2") == "decode-2"


async def test_a_subscriber_sees_messages_in_order_and_survives_its_own_errors(
    server_bus: Bus, caller_bus: Bus
) -> None:
    seen: list[str] = []
    done = asyncio.Event()

    async def handler(message: router_pb2.CancelRequest, _context: MessageContext) -> None:
        if message.request_id == "bad":
            raise RuntimeError("a bug")
        await asyncio.sleep(0)
        seen.append(message.request_id)
        if message.request_id == "99":
            done.set()

    await server_bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, handler)
    await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id="bad"))
    await caller_bus.connection.publish(subjects.cancel(), b"\xff\xff")
    for i in range(100):
        await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id=str(i)))
    await soon(done.wait())
    assert seen == [str(i) for i in range(100)]


async def test_a_subscriber_that_hangs_holds_others_up_for_a_bounded_time(
    server_bus: Bus, caller_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rorqual_runtime.bus.MAX_SUBSCRIBER_S", 0.1)
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(message: router_pb2.CancelRequest, _context: MessageContext) -> None:
        if message.request_id == "hang":
            await asyncio.sleep(600)
        seen.put_nowait(message.request_id)

    await server_bus.subscribe(subjects.cancel(), router_pb2.CancelRequest, handler)
    for name in ("hang", "next"):
        await caller_bus.publish(subjects.cancel(), router_pb2.CancelRequest(request_id=name))
    assert await soon(seen.get()) == "next"


async def test_closing_answers_what_is_under_way(
    runtime_settings: RuntimeSettings, caller_bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rorqual_runtime.bus.CLOSE_GRACE_S", 0.2)

    started = asyncio.Event()

    async def handler(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        started.set()
        await asyncio.sleep(600)
        return router_pb2.PlaceReply()

    leaving = await Bus.connect(runtime_settings, "router")
    await serve_place(leaving, handler)
    asking = asyncio.create_task(ask_place(caller_bus))
    await soon(started.wait())
    await leaving.close()
    with pytest.raises(Draining):
        await soon(asking)


async def test_a_question_is_sent_again_in_case_somebody_cut_off_has_it(
    runtime_settings: RuntimeSettings, server_bus: Bus, caller_bus: Bus
) -> None:
    """The first one who gets it never answers; the first answer counts."""
    taken = asyncio.Event()

    async def hang(_request: object, _context: MessageContext) -> router_pb2.PlaceReply:
        taken.set()
        await asyncio.Event().wait()
        raise AssertionError

    await serve_place(server_bus, hang)
    asking = asyncio.create_task(
        caller_bus.request(
            subjects.router_place(),
            router_pb2.PlaceRequest(request_id="7"),
            router_pb2.PlaceReply,
            timeout_s=WAIT_S,
            again_s=0.05,
        )
    )
    await soon(taken.wait())
    await server_bus.stop_shared()
    other = await Bus.connect(runtime_settings, "router", instance_id="router-2")
    await serve_place(other, answer_place)
    assert (await soon(asking)).placement.decode_id == "decode-7"
    await other.close()
