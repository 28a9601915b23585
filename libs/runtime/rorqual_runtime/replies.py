"""Errors inside replies: in the reply's own error arm, or else in a header."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from rorqual_proto.v1 import error_pb2

from rorqual_runtime.errors import (
    Corrupt,
    ServingError,
    error_from_wire,
    error_to_wire,
    http_status,
)

ERROR_HEADER = "Rorqual-Error"
MICRO_ERROR_HEADER = "Nats-Service-Error"
MICRO_ERROR_CODE_HEADER = "Nats-Service-Error-Code"
_MAX_HEADER_CHARS = 300

M = TypeVar("M", bound=Message)


def has_error_arm(reply_type: type[Message]) -> bool:
    """Whether the reply is a `oneof result` with an `ErrorInfo error`."""
    return _descriptor_has_error_arm(reply_type.DESCRIPTOR)


@functools.cache
def _descriptor_has_error_arm(reply: Descriptor) -> bool:
    result = reply.oneofs_by_name.get("result")
    return result is not None and any(
        field.name == "error" and field.message_type is error_pb2.ErrorInfo.DESCRIPTOR
        for field in result.fields
    )


def error_reply(reply_type: type[Message], error: BaseException) -> tuple[bytes, dict[str, str]]:
    """Payload and headers that carry the error; the micro headers are for the `nats` tool."""
    wire = error_to_wire(error)
    headers = {
        MICRO_ERROR_HEADER: _one_line(wire.message),
        MICRO_ERROR_CODE_HEADER: str(http_status(wire.code)),
    }
    if has_error_arm(reply_type):
        return reply_type(error=wire).SerializeToString(), headers
    headers[ERROR_HEADER] = base64.b64encode(wire.SerializeToString()).decode()
    return b"", headers


def parse_reply(reply_type: type[M], payload: bytes, headers: Mapping[str, str] | None) -> M:
    """The reply message.

    Raises: the ServingError that the other end answered with; Corrupt when it can't be parsed.
    """
    if headers and (encoded := headers.get(ERROR_HEADER)):
        raise _error_from_header(encoded)
    reply = parse_message(reply_type, payload)
    if has_error_arm(reply_type) and reply.WhichOneof("result") == "error":
        raise error_from_wire(reply.error)  # type: ignore[attr-defined]
    return reply


def parse_message(message_type: type[M], payload: bytes) -> M:
    """Raises: Corrupt when the bytes are no such message."""
    try:
        return message_type.FromString(payload)
    except DecodeError:
        raise Corrupt(f"{len(payload)} bytes that are no {message_type.DESCRIPTOR.name}") from None


def _error_from_header(encoded: str) -> ServingError:
    try:
        return error_from_wire(error_pb2.ErrorInfo.FromString(base64.b64decode(encoded)))
    except (binascii.Error, DecodeError):
        return Corrupt("an error reply that can't be read")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MAX_HEADER_CHARS] or "error"
