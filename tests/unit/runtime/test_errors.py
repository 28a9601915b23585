"""Errors keep class, code and data across the wire."""

from __future__ import annotations

import pytest
from rorqual_proto.v1 import error_pb2, recipe_pb2, router_pb2, scaler_pb2
from rorqual_runtime import errors
from rorqual_runtime.errors import ErrorCode, ServingError, error_from_wire, error_to_wire
from rorqual_runtime.replies import error_reply, parse_reply

EXAMPLES = [
    errors.InvalidRequest("temperature must be at most 2", "temperature"),
    errors.Unauthenticated("unknown key"),
    errors.PermissionDenied("this key may not use this model"),
    errors.NotFound("no such model", details={"model": "m"}),
    errors.RequestTooLarge(2_000_000, 1_000_000),
    errors.RateLimited(7),
    errors.ContextTooLong(9000, 8192),
    errors.Unsupported("no vision tower", "messages[0].content[1]"),
    errors.QueueTimeout(),
    errors.NoCapacity("all pages are taken"),
    errors.Draining(),
    errors.Unavailable(),
    errors.DeadlineExceeded(),
    errors.Cancelled(),
    errors.StaleTicket(),
    errors.Corrupt(),
    errors.Internal(),
]


def test_python_codes_are_the_wire_codes() -> None:
    wire = {name.removeprefix("ERROR_CODE_"): n for name, n in error_pb2.ErrorCode.items()}
    assert {code.name: code.value for code in ErrorCode} == wire


def test_every_code_has_exactly_one_class() -> None:
    assert sorted(e.code for e in EXAMPLES) == sorted(set(ErrorCode) - {ErrorCode.UNSPECIFIED})


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_round_trip_keeps_class_and_data(error: ServingError) -> None:
    copy = error_from_wire(error_to_wire(error))
    assert type(copy) is type(error)
    assert (copy.code, copy.retryable, copy.message, copy.param) == (
        error.code,
        error.retryable,
        error.message,
        error.param,
    )
    assert (copy.retry_after_s, copy.details) == (error.retry_after_s, error.details)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.INVALID_REQUEST, 400),
        (ErrorCode.RATE_LIMITED, 429),
        (ErrorCode.QUEUE_TIMEOUT, 408),
        (ErrorCode.NO_CAPACITY, 503),
        (ErrorCode.DRAINING, 503),
        (ErrorCode.DEADLINE_EXCEEDED, 504),
        (ErrorCode.INTERNAL, 500),
        (ErrorCode.STALE_TICKET, 500),
        (999, 500),
    ],
)
def test_http_status(code: int, status: int) -> None:
    assert errors.http_status(code) == status


def test_a_code_of_a_newer_peer_is_internal() -> None:
    wire = error_pb2.ErrorInfo(message="from the future")
    wire.code = 99  # type: ignore[assignment]
    assert type(error_from_wire(wire)) is errors.Internal


def test_a_foreign_exception_does_not_leak_its_text() -> None:
    wire = error_to_wire(ValueError("bad text: the user's secret"))
    assert wire.code == error_pb2.ERROR_CODE_INTERNAL
    assert "secret" not in wire.message


@pytest.mark.parametrize(
    "reply_type",
    [router_pb2.PlaceReply, recipe_pb2.ListModelsReply, recipe_pb2.EncodeReply],
    ids=["error arm", "no oneof", "another error type"],
)
def test_every_reply_type_carries_errors(reply_type: type) -> None:
    payload, headers = error_reply(reply_type, errors.ContextTooLong(10, 5))
    assert headers["Nats-Service-Error-Code"] == "400"
    with pytest.raises(errors.ContextTooLong) as caught:
        parse_reply(reply_type, payload, headers)
    assert caught.value.limit_tokens == 5


def test_an_unreadable_reply_is_corrupt() -> None:
    with pytest.raises(errors.Corrupt):
        parse_reply(scaler_pb2.ScaleDecision, b"\xff\xff\xff", {})
    with pytest.raises(errors.Corrupt):
        parse_reply(scaler_pb2.ScaleDecision, b"", {"Rorqual-Error": "not base64!"})
