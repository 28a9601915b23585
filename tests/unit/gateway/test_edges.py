"""Keys, ids, admission, readiness and errors of the gateway."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rorqual_gateway.admission import Admission, BodyBudget
from rorqual_gateway.callers import ANYBODY, Callers
from rorqual_gateway.dialects import ANTHROPIC, OPENAI, RESPONSES
from rorqual_gateway.endpoints import Endpoint, dialect_of
from rorqual_gateway.http_io import read_body
from rorqual_gateway.keys import KeyRing, parse_api_keys
from rorqual_gateway.openapi import OPERATIONS
from rorqual_gateway.readiness import FleetView
from rorqual_gateway.request_ids import name_request
from rorqual_gateway.server import open_listener
from rorqual_gateway.settings import GatewaySettings
from rorqual_proto.v1 import recipe_pb2
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.accounts.keys import Scope
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    Internal,
    InvalidRequest,
    NoCapacity,
    NotFound,
    QueueTimeout,
    RateLimited,
    RequestTooLarge,
    Unauthenticated,
    Unavailable,
)


async def tenant_of(keys: str, *, bearer: str = "", api_key: str = "") -> str:
    """Whose request it is when only the keys of settings count."""
    callers = Callers(KeyRing(parse_api_keys(keys)), stored=None)
    headers = {"authorization": bearer, "x-api-key": api_key}
    return (await callers.caller_of(headers, Scope.INFERENCE)).tenant


async def test_each_key_has_its_tenant() -> None:
    keys = "team-a:one, two ,team-b:three"
    assert await tenant_of(keys, bearer="Bearer one") == "team-a"
    assert await tenant_of(keys, bearer="bearer three") == "team-b"
    unnamed = await tenant_of(keys, bearer="Bearer two")
    assert unnamed.startswith("key-") and "two" not in unnamed


@pytest.mark.parametrize("header", ["", "one", "Basic one", "Bearer ", "Bearer onE", "Bearer ö"])
async def test_anything_else_is_unauthenticated(header: str) -> None:
    with pytest.raises(Unauthenticated):
        await tenant_of("one", bearer=header)


async def test_either_header_holds_the_key() -> None:
    keys = "a:one,b:two"
    assert await tenant_of(keys, api_key="one") == "a"
    assert await tenant_of(keys, bearer="Bearer wrong", api_key="two") == "b"
    assert await tenant_of(keys, bearer="Bearer one", api_key="two") == "a"
    with pytest.raises(Unauthenticated):
        await tenant_of(keys, bearer="Bearer x", api_key="y")


async def test_without_keys_everybody_is_one_tenant() -> None:
    assert await tenant_of("", bearer="Bearer whatever") == ANYBODY.tenant


@pytest.mark.parametrize("text", ["name:", ":key", "a,:b"])
def test_unreadable_keys_stop_the_start_without_being_quoted(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GatewaySettings(api_keys=text)
    assert "API keys" in str(caught.value)
    assert "s3cret" not in repr(GatewaySettings(api_keys="s3cret"))


def test_metrics_that_need_a_key_need_somebody_who_has_one() -> None:
    assert GatewaySettings(metrics_need_key=True, api_keys="k").metrics_need_key
    assert GatewaySettings(metrics_need_key=True, stored_keys=True).metrics_need_key
    with pytest.raises(ValidationError, match="metrics_need_key"):
        GatewaySettings(metrics_need_key=True)


@pytest.mark.parametrize("text", ["app.example.com", "https://a.b/", "https://", "ftp://a", "null"])
def test_what_is_no_origin_stops_the_start(text: str) -> None:
    assert GatewaySettings(cors_origins="*, https://a.b:8443").cors_origins
    with pytest.raises(ValidationError, match="is not an origin"):
        GatewaySettings(cors_origins=f"https://a.b,{text}")


@given(st.text(max_size=80))
def test_request_ids_are_safe_and_never_repeat(client_id: str) -> None:
    first, second = name_request(client_id), name_request(client_id)
    assert first.request_id != second.request_id
    for name in (first.request_id, first.echoed):
        assert name.isascii()
        assert all(char.isalnum() or char in "._-" for char in name)
        assert 0 < len(name) <= 73


def test_bodies_are_kept_while_there_is_room_for_them() -> None:
    budget = BodyBudget(100)
    with pytest.raises(KeyError), budget.hold(60) as is_kept:
        assert is_kept
        with budget.hold(41) as is_kept_too:
            assert not is_kept_too
        with budget.hold(40) as is_kept_too:
            assert is_kept_too
        assert budget.num_bytes == 60
        raise KeyError
    assert budget.num_bytes == 0


def test_admission_frees_its_slot_on_every_exit() -> None:
    admission = Admission(1)
    with pytest.raises(KeyError), admission.slot():
        with pytest.raises(RateLimited), admission.slot():
            pass
        raise KeyError
    with admission.slot():
        assert admission.num_active == 1
    admission.draining = True
    with pytest.raises(Draining), admission.slot():
        pass
    assert admission.num_active == 0


async def test_services_are_missing_when_silent_or_draining() -> None:
    clock = ManualClock()
    fleet = FleetView(clock, stale_after_s=3)
    assert fleet.missing(["router", "decode"]) == ["router", "decode"]
    fleet.note(LoadReport(service="router", instance_id="router-1"))
    fleet.note(LoadReport(service="decode", instance_id="decode-1", draining=True))
    assert fleet.missing(["router", "decode"]) == ["decode"]
    fleet.note(LoadReport(service="decode", instance_id="decode-2"))
    assert fleet.missing(["router", "decode"]) == []
    assert fleet.live("decode") == ["decode-2"]
    await clock.advance(3.5)
    assert fleet.missing(["router"]) == ["router"]
    assert fleet.live("decode") == []


@pytest.mark.parametrize(
    ("error", "status", "retry_after_s"),
    [
        (InvalidRequest("bad", "model"), 400, 0),
        (Unauthenticated("who"), 401, 0),
        (QueueTimeout(), 408, 0),
        (RequestTooLarge(5, 4), 413, 0),
        (RateLimited(3), 429, 3),
        (NoCapacity(), 503, 1),
        (Draining(retry_after_s=9), 503, 9),
        (DeadlineExceeded(), 504, 0),
        (Cancelled(), 499, 0),
        (Internal(), 500, 0),
    ],
)
def test_errors_have_openai_shape(error, status: int, retry_after_s: int) -> None:
    rendered = OPENAI.render_error(error)
    assert (rendered.status, rendered.retry_after_s) == (status, retry_after_s)
    assert set(json.loads(rendered.body)["error"]) == {"message", "type", "param", "code"}


ERRORS = [
    InvalidRequest("bad", "model"),
    Unauthenticated("who"),
    NotFound("no such model"),
    RequestTooLarge(5, 4),
    RateLimited(3),
    Unavailable(),
    DeadlineExceeded(),
]


@pytest.mark.parametrize("error", ERRORS)
def test_every_family_reads_the_same_failure_in_its_own_shape(error) -> None:
    openai, anthropic = OPENAI.render_error(error), ANTHROPIC.render_error(error)
    assert openai.status == anthropic.status
    assert openai.retry_after_s == anthropic.retry_after_s
    shown = json.loads(anthropic.body)
    assert (shown["type"], set(shown["error"])) == ("error", {"type", "message"})
    assert error.message in shown["error"]["message"]
    assert (error.param or "") in shown["error"]["message"]


def test_a_begun_stream_ends_in_its_own_way() -> None:
    error = Unavailable("lost")
    frames = OPENAI.render_error(error).sse_frames.split(b"\n\n")
    assert json.loads(frames[0].removeprefix(b"data: "))["error"]["message"] == "lost"
    assert frames[1:] == [b"data: [DONE]", b""]
    event = _event(RESPONSES.render_error(error, num_frames=7).sse_frames)
    assert (event["type"], event["sequence_number"], event["message"]) == ("error", 7, "lost")
    event = _event(ANTHROPIC.render_error(error).sse_frames)
    assert event["error"] == {"type": "overloaded_error", "message": "lost"}


def _event(frames: bytes) -> dict:
    name, data, *rest = frames.split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    return json.loads(data.removeprefix(b"data: "))


@pytest.mark.parametrize(
    ("path", "headers", "dialect"),
    [
        ("/v1/messages/nothing", {}, ANTHROPIC),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, ANTHROPIC),
        ("/v1/models", {}, OPENAI),
        ("/v1/nothing", {}, OPENAI),
    ],
)
def test_who_asks_decides_the_shape_where_no_operation_does(path, headers, dialect) -> None:
    assert dialect_of(path, headers) is dialect


def test_every_operation_is_known_to_recipe_and_described() -> None:
    assert set(OPERATIONS) == {endpoint.name for endpoint in Endpoint}
    for endpoint in Endpoint:
        assert recipe_pb2.Protocol.Value(f"PROTOCOL_{endpoint.name}") > 0


async def test_a_body_is_bounded_in_size_and_time() -> None:
    async def chunks():
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    async def silence():
        await asyncio.sleep(10)

    with pytest.raises(RequestTooLarge):
        await read_body(chunks, {}, max_bytes=35, timeout_s=1)
    with pytest.raises(RequestTooLarge):
        await read_body(silence, {"content-length": "36"}, max_bytes=35, timeout_s=1)
    with pytest.raises(DeadlineExceeded):
        await read_body(silence, {}, max_bytes=35, timeout_s=0.02)


def test_anthropics_errors_name_the_request_in_body_and_stream() -> None:
    error = ANTHROPIC.with_request_id(ANTHROPIC.render_error(NoCapacity("full")), "r1")
    body = json.loads(error.body)
    assert body["request_id"] == "r1"
    assert body["error"] == {"type": "overloaded_error", "message": "full"}
    assert error.sse_frames == b"event: error\ndata: " + error.body + b"\n\n"
    plain = ANTHROPIC.with_request_id(ANTHROPIC.plain_error(404, "no such path"), "r2")
    assert json.loads(plain.body)["request_id"] == "r2"
    openai = OPENAI.render_error(NoCapacity("full"))
    assert OPENAI.with_request_id(openai, "r3") == openai


async def test_small_writes_leave_at_once() -> None:
    """Nagle's algorithm would hold the second small packet of an answer for 40 ms."""
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    listener = open_listener("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(Peer, sock=listener):
        _reader, writer = await asyncio.open_connection(*listener.getsockname())
        connection = (await accepted).get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
