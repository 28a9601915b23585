"""The reader's side of the gRPC transport."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np
import xxhash
from google.protobuf.message import DecodeError
from opentelemetry import propagate
from rorqual_proto.v1 import error_pb2, tensor_pb2

from rorqual_runtime.errors import (
    Corrupt,
    DeadlineExceeded,
    ServingError,
    StaleTicket,
    Unavailable,
    error_from_wire,
)
from rorqual_runtime.tensors.copying import U8Array
from rorqual_runtime.tensors.credentials import LinkCredentials
from rorqual_runtime.tensors.frames import decode_chunk
from rorqual_runtime.tensors.grpc_server import (
    CHANNEL_OPTIONS,
    ERROR_METADATA_KEY,
    KEEPALIVE_MS,
    SERVICE_NAME,
)

T = TypeVar("T")
_MAX_CHANNELS = 128
_RETIRE_S = 60.0
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not inherit an old one's backoff
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),  # a half-open link is gone before it is needed
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class RemoteReader:
    """Reads and releases tickets at other instances. A failed link is dropped and dialled anew by
    the next call: nothing is held against a peer. For one event loop."""

    def __init__(self, stall_timeout_s: float, credentials: LinkCredentials) -> None:
        self._credentials = credentials
        self._stall_timeout_s = stall_timeout_s
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._retiring: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    async def read(
        self,
        address: str,
        ticket: tensor_pb2.TensorTicket,
        into: U8Array | None,
        timeout_s: float,
    ) -> U8Array:
        """Stream the ticket's bytes into `into`, or into a new array.

        Raises: StaleTicket, Corrupt; Unavailable when the peer is gone or stalls;
            DeadlineExceeded after timeout_s. `into` then holds anything. When cancelled, the
            stream is cancelled at the peer and `into` is not written to any more.
        """
        call = self._channel(address).unary_stream(f"/{SERVICE_NAME}/Read")(
            tensor_pb2.ReadRequest(ticket=ticket).SerializeToString(),
            timeout=timeout_s,
            metadata=_trace_metadata(),
        )
        try:
            return await self._receive(call, ticket, into)
        except grpc.aio.AioRpcError as error:
            self._drop_if_broken(address, error.code())
            raise _as_serving_error(error, address) from error
        except TimeoutError as error:
            self._drop(address)
            raise Unavailable(f"{address} sent nothing for {self._stall_timeout_s} s") from error
        except asyncio.CancelledError as error:
            _raise_if_not_ours(error, address)
            raise
        finally:
            call.cancel()

    async def release(
        self, address: str, ticket: tensor_pb2.TensorTicket, timeout_s: float
    ) -> bool:
        """Free the ticket at its owner; False when it was gone already.

        Raises: Unavailable, DeadlineExceeded.
        """
        release = self._channel(address).unary_unary(
            f"/{SERVICE_NAME}/Release",
            request_serializer=tensor_pb2.ReleaseRequest.SerializeToString,
            response_deserializer=tensor_pb2.ReleaseReply.FromString,
        )
        request = tensor_pb2.ReleaseRequest(ticket=ticket)
        try:
            reply = await release(request, timeout=timeout_s, metadata=_trace_metadata())
        except grpc.aio.AioRpcError as error:
            self._drop_if_broken(address, error.code())
            raise _as_serving_error(error, address) from error
        except asyncio.CancelledError as error:
            _raise_if_not_ours(error, address)
            raise
        return bool(reply.released)

    async def close(self) -> None:
        """Cancel what is being read and close every channel."""
        channels = [*self._channels.values(), *self._retiring.values()]
        self._channels.clear()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*(channel.close() for channel in channels))

    async def _receive(
        self, call: Any, ticket: tensor_pb2.TensorTicket, into: U8Array | None
    ) -> U8Array:
        target, position, digest = into, 0, xxhash.xxh3_64()
        while True:
            frame = await self._bounded(call.read())
            if frame is grpc.aio.EOF:
                break
            data = decode_chunk(frame)
            if position + data.nbytes > ticket.size_bytes:
                raise Corrupt("the owner sent more bytes than the ticket says")
            if target is None:  # only now: the owner has confirmed the ticket's size
                target = np.empty(ticket.size_bytes, np.uint8)
            target[position : position + data.nbytes] = np.frombuffer(data, np.uint8)
            position += data.nbytes
            if ticket.xxh3_64:
                digest.update(data)
        if position != ticket.size_bytes:
            raise Corrupt("the owner sent fewer bytes than the ticket says")
        if ticket.xxh3_64 and digest.intdigest() != ticket.xxh3_64:
            raise Corrupt("the tensor's checksum does not match its ticket")
        return np.empty(0, np.uint8) if target is None else target

    async def _bounded(self, waiting: Awaitable[T]) -> T:
        async with asyncio.timeout(self._stall_timeout_s):
            return await waiting

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._credentials.dial(address, _OPTIONS)
            self._channels[address] = channel
            if len(self._channels) > _MAX_CHANNELS:
                self._drop(next(iter(self._channels)))
        self._channels.move_to_end(address)
        return channel

    def _drop_if_broken(self, address: str, code: grpc.StatusCode) -> None:
        if code is grpc.StatusCode.UNAVAILABLE:
            self._drop(address)

    def _drop(self, address: str) -> None:
        """Forget the channel; calls of others on it may end by themselves."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            closing = asyncio.ensure_future(channel.close(grace=_RETIRE_S))
            self._retiring[closing] = channel
            closing.add_done_callback(lambda task: self._retiring.pop(task, None))


def _raise_if_not_ours(error: asyncio.CancelledError, address: str) -> None:
    """gRPC reports a call cancelled under us in the same way as a cancelled task."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise Unavailable(f"the call to {address} was cancelled") from error


def _trace_metadata() -> tuple[tuple[str, str], ...]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())


def _as_serving_error(error: grpc.aio.AioRpcError, address: str) -> ServingError:
    """What the peer raised, or what the state of the link means to the caller."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            try:
                return error_from_wire(error_pb2.ErrorInfo.FromString(value))
            except DecodeError:
                break
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"reading from {address} took too long")
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return StaleTicket(error.details() or "the tensor ticket is stale")
    return Unavailable(f"the tensor plane at {address} failed: {error.code().name}")
