"""The owner's side of the gRPC transport: streams tickets out of the arena."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
from opentelemetry import propagate, trace
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.errors import (
    DeadlineExceeded,
    NoCapacity,
    ServingError,
    StaleTicket,
    Unavailable,
    error_to_wire,
)
from rorqual_runtime.tensors.arena import Arena
from rorqual_runtime.tensors.credentials import LinkCredentials
from rorqual_runtime.tensors.frames import CHUNK_BYTES, encode_chunk

SERVICE_NAME = "rorqual.v1.TensorPlane"
ERROR_METADATA_KEY = "rorqual-error-bin"
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
    ("grpc.http2.lookahead_bytes", 8 << 20),
    ("grpc.http2.write_buffer_size", 8 << 20),
)
KEEPALIVE_MS = 2000
"""A link is asked for a sign of life after so long without one, and broken after as long again."""
_MAX_CONCURRENT_CALLS = 256
_STOP_GRACE_S = 0.2
_PINGED = (
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)

_STATUS = {
    StaleTicket: grpc.StatusCode.FAILED_PRECONDITION,
    NoCapacity: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class TensorServer:
    """Serves `Read` and `Release` of one arena until stopped."""

    def __init__(
        self, arena: Arena, owner_id: str, tracer: trace.Tracer, credentials: LinkCredentials
    ) -> None:
        self._credentials = credentials
        self._arena = arena
        self._owner_id = owner_id
        self._tracer = tracer
        self._server: grpc.aio.Server | None = None
        self.num_reading = 0
        """Streams being sent now."""

    async def start(self, host: str) -> str:
        """Listen on a free port of `host`. Returns the address for tickets.

        Raises: Unavailable when the host cannot be listened on.
        """
        options = (*CHANNEL_OPTIONS, *_PINGED, ("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CONCURRENT_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        bracketed = f"[{host}]" if ":" in host else host
        try:
            port = self._credentials.listen(server, f"{bracketed}:0")
        except RuntimeError as error:
            raise Unavailable(f"the tensor plane cannot listen on {host!r}") from error
        await server.start()
        self._server = server
        return f"{bracketed}:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_S)
            self._server = None

    def _handlers(self) -> grpc.GenericRpcHandler:
        read = grpc.unary_stream_rpc_method_handler(
            self._on_read, request_deserializer=tensor_pb2.ReadRequest.FromString
        )
        release = grpc.unary_unary_rpc_method_handler(
            self._on_release,
            request_deserializer=tensor_pb2.ReleaseRequest.FromString,
            response_serializer=tensor_pb2.ReleaseReply.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME, {"Read": read, "Release": release}
        )

    async def _on_read(
        self, request: tensor_pb2.ReadRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        # Not an async generator: a cancelled one would be closed some time later, by another task.
        self.num_reading += 1
        try:
            with self._tracer.start_as_current_span(
                "tensor.read",
                context=propagate.extract(dict(_text_metadata(context))),
                kind=trace.SpanKind.SERVER,
                attributes={"rorqual.tensor.bytes": request.ticket.size_bytes},
            ):
                for frame in self._frames(request.ticket):
                    await context.write(frame)
        except ServingError as error:
            await _abort(context, error)
        finally:
            self.num_reading -= 1

    def _frames(self, ticket: tensor_pb2.TensorTicket) -> Iterator[bytes]:
        if ticket.owner_id != self._owner_id:
            raise StaleTicket("the ticket is of another owner")
        payload = self._arena.check(ticket).data
        for start in range(0, payload.nbytes, CHUNK_BYTES):
            frame = encode_chunk(payload[start : start + CHUNK_BYTES])
            if not self._arena.still_holds(ticket):
                raise StaleTicket("the ticket's data was released while it was read")
            yield frame

    async def _on_release(
        self, request: tensor_pb2.ReleaseRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tensor_pb2.ReleaseReply:
        ours = request.ticket.owner_id == self._owner_id
        released = ours and self._arena.release(request.ticket)
        return tensor_pb2.ReleaseReply(released=released)


def _text_metadata(context: grpc.aio.ServicerContext[Any, Any]) -> list[tuple[str, str]]:
    pairs = context.invocation_metadata() or ()
    return [(key, value) for key, value in pairs if isinstance(value, str)]


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: ServingError) -> None:
    await context.abort(
        _STATUS.get(type(error), grpc.StatusCode.INTERNAL),
        error.message,
        ((ERROR_METADATA_KEY, error_to_wire(error).SerializeToString()),),
    )
