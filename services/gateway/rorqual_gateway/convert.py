"""Wire <-> domain. Nothing else in this service touches generated messages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rorqual_proto.v1 import recipe_pb2
from rorqual_proto.v1.generation_pb2 import Generation
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_proto.v1.recipe_pb2 import (
    EncodeReply,
    EncodeRequest,
    EventBatch,
    ListModelsReply,
    ListModelsRequest,
    ProtocolError,
    RenderErrorRequest,
    ResendEventsReply,
    ResendEventsRequest,
    Resume,
    StreamEvents,
    Usage,
)
from rorqual_proto.v1.router_pb2 import CancelRequest, SubmitReply, SubmitRequest
from rorqual_proto.v1.scaler_pb2 import ScaleDecision
from rorqual_proto.v1.tensor_pb2 import Payload
from rorqual_runtime.errors import ErrorCode, ServingError, error_to_wire

from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.errors import HttpError, RequestFailed
from rorqual_gateway.sinks import Event, EventSink, TokenUsage

NO_EVENT = (1 << 64) - 1
"""A number no event has: nothing needs to be sent again."""

__all__ = [
    "CancelRequest",
    "EncodeReply",
    "EncodeRequest",
    "EventBatch",
    "ListModelsReply",
    "ListModelsRequest",
    "LoadReport",
    "ProtocolError",
    "ResendEventsReply",
    "ResendEventsRequest",
    "Resume",
    "ScaleDecision",
    "SubmitReply",
]


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """What recipe made of a body. submits: ready to be sent to router, one for each prompt."""

    model: str
    recipe_id: str
    num_choices: int
    max_new_tokens: int
    stream: bool
    warnings: Sequence[str]
    submits: Sequence[SubmitRequest]


@dataclass(frozen=True, slots=True)
class DirectAnswer:
    """An answer that needed no generation."""

    http_status: int
    body: Payload


@dataclass(frozen=True, slots=True)
class Model:
    """A served model."""

    id: str
    max_context_tokens: int
    created_unix_s: int


def encode_request(
    request_id: str,
    endpoint: Endpoint,
    body: Payload,
    *,
    resource: str,
    tenant: str,
    gateway_id: str,
    received_unix_s: float,
    deadline_unix_s: float,
    resume: Resume | None = None,
) -> EncodeRequest:
    """A client's body for recipe. resume: go on with an answer that another instance began."""
    return EncodeRequest(
        request_id=request_id,
        protocol=_protocol_to_wire(endpoint),
        body=body,
        resource=resource,
        tenant=tenant,
        gateway_id=gateway_id,
        received_unix_s=received_unix_s,
        deadline_unix_s=deadline_unix_s,
        resume=resume,
    )


def resume_to_wire(sink: EventSink, first_recipe_id: str, take_over: int) -> Resume:
    """How far the answer has come. first_recipe_id: decode sends the tokens there."""
    position = sink.position
    return Resume(
        lost_recipe_id=first_recipe_id,
        take_over=take_over,
        next_seq=sink.next_seq,
        num_tokens=position.num_tokens,
        finish_reasons=position.finish_reasons,
        decode_ids=position.decode_ids,
    )


def _protocol_to_wire(endpoint: Endpoint) -> Any:
    return recipe_pb2.Protocol.Value(f"PROTOCOL_{endpoint.name}")


def encoded_from_wire(reply: EncodeReply) -> EncodedRequest | DirectAnswer:
    """What recipe made of a body. Raises: RequestFailed with recipe's error."""
    if reply.HasField("error"):
        raise RequestFailed(error_from_wire(reply.error))
    if reply.HasField("answer"):
        return DirectAnswer(reply.answer.http_status, reply.answer.body)
    encoded = reply.encoded
    first = encoded.generations[0]
    return EncodedRequest(
        model=first.model,
        recipe_id=first.reply.recipe_id,
        num_choices=len(encoded.generations),
        max_new_tokens=first.sampling.max_new_tokens,
        stream=encoded.stream,
        warnings=tuple(encoded.warnings),
        submits=_by_prompt(encoded.generations),
    )


def _by_prompt(generations: Sequence[Generation]) -> list[SubmitRequest]:
    """Choices of one prompt go together; those of different prompts have nothing in common."""
    groups = groupby(generations, key=lambda generation: generation.prompt.SerializeToString())
    return [SubmitRequest(generations=group) for _, group in groups]


def error_from_wire(error: ProtocolError) -> HttpError:
    """An error that recipe has rendered."""
    code = ErrorCode(error.info.code).name if error.HasField("info") else "INVALID_REQUEST"
    return HttpError(
        error.http_status or 500, error.body_json, code, error.retry_after_s, error.sse_frames
    )


def render_error_request(
    request_id: str, endpoint: Endpoint, error: ServingError
) -> RenderErrorRequest:
    """Asks recipe to put an error into the caller's protocol."""
    return RenderErrorRequest(
        request_id=request_id, protocol=_protocol_to_wire(endpoint), error=error_to_wire(error)
    )


@dataclass(frozen=True, slots=True)
class Resent:
    """Events again. listener_id: the gateway that gets those to come; "" = none will."""

    events: Sequence[Event]
    listener_id: str


def resend_request(
    request_id: str, from_seq: int, *, listener_id: str = "", leaves: bool = False
) -> ResendEventsRequest:
    """Asks for events from a number on. listener_id: who gets all further ones, or does no more."""
    return ResendEventsRequest(
        request_id=request_id, from_seq=from_seq, listener_id=listener_id, leaves=leaves
    )


def resent_from_wire(reply: ResendEventsReply) -> Resent:
    """The events again."""
    return Resent([event for _, event in events_from_wire(reply.events)], reply.listener_id)


def events_from_wire(batch: EventBatch) -> Iterator[tuple[str, Event]]:
    """Request id and event, in the order of the batch."""
    for stream in batch.streams:
        yield stream.request_id, _event_from_wire(stream)


def _event_from_wire(stream: StreamEvents) -> Event:
    return Event(
        seq=stream.seq,
        data=stream.data,
        done=stream.done,
        error=error_from_wire(stream.error) if stream.HasField("error") else None,
        usage=_usage_from_wire(stream.usage) if stream.HasField("usage") else None,
        finish_reasons=tuple(stream.finish_reasons),
        num_tokens=stream.num_tokens,
        decode_ids=stream.decode_ids,
        take_over=stream.take_over,
    )


def _usage_from_wire(usage: Usage) -> TokenUsage:
    return TokenUsage(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        usage.reasoning_tokens,
        usage.cache_miss_reason,
    )


def models_from_wire(reply: ListModelsReply) -> list[Model]:
    """What is served."""
    return [
        Model(model.id, model.max_context_tokens, model.created_unix_s) for model in reply.models
    ]


def shown(message: Message) -> dict[str, Any]:
    """A message as JSON for people, fields that are 0 included; 64-bit numbers are strings."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
