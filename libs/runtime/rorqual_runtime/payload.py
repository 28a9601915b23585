"""Payloads: bytes inline while small, by ticket above the bus's limit."""

from __future__ import annotations

import contextlib

import numpy as np
import numpy.typing as npt
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.errors import Corrupt, RequestTooLarge, ServingError
from rorqual_runtime.tensors import DEFAULT_LEASE_S, TensorPlane

DEFAULT_MAX_BYTES = 256 << 20

TokenIds = npt.NDArray[np.int32]


async def put_payload(
    tensors: TensorPlane, data: bytes, *, lease_s: float = DEFAULT_LEASE_S
) -> tensor_pb2.Payload:
    """`data` as it travels. A ticket in it is freed by its reader or by the end of its lease.

    Raises: NoCapacity when it has to go to the arena and that is full.
    """
    if len(data) <= tensors.max_inline_bytes:
        return tensor_pb2.Payload(inline=data)
    return tensor_pb2.Payload(ticket=await tensors.publish(data, lease_s=lease_s))


async def get_payload(
    tensors: TensorPlane,
    payload: tensor_pb2.Payload,
    *,
    keep: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    timeout_s: float = 30.0,
) -> bytes:
    """The payload's bytes; its ticket, if any, is released at the owner unless `keep`.

    A failed release is no failure of the read: the lease ends by itself.

    Raises: RequestTooLarge above max_bytes, before anything is read; Corrupt when there is no
        body; StaleTicket, Unavailable, DeadlineExceeded as `TensorPlane.fetch`.
    """
    kind = payload.WhichOneof("body")
    if kind is None:
        raise Corrupt("the payload has no body")
    size_bytes = len(payload.inline) if kind == "inline" else payload.ticket.size_bytes
    if size_bytes > max_bytes:
        raise RequestTooLarge(size_bytes, max_bytes)
    if kind == "inline":
        return bytes(payload.inline)
    data = bytes((await tensors.fetch(payload.ticket, timeout_s=timeout_s)).data)
    if not keep:
        await drop_payload(tensors, payload)
    return data


async def get_token_ids(
    tensors: TensorPlane, payload: tensor_pb2.Payload, num_tokens: int, *, timeout_s: float = 30.0
) -> TokenIds:
    """A prompt, int32 [num_tokens]. Its ticket stays for whoever reads it next.

    Raises: Corrupt when it is not that many tokens; else as `get_payload`.
    """
    data = await get_payload(tensors, payload, keep=True, timeout_s=timeout_s)
    if len(data) != 4 * num_tokens:
        raise Corrupt(f"a prompt of {num_tokens} tokens came as {len(data)} bytes")
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


async def drop_payload(tensors: TensorPlane, payload: tensor_pb2.Payload) -> None:
    """Reader: nobody needs it any more. Best effort: its lease ends by itself."""
    if payload.HasField("ticket"):
        with contextlib.suppress(ServingError):
            await tensors.release_remote(payload.ticket)


def free_payload(tensors: TensorPlane, payload: tensor_pb2.Payload) -> None:
    """Owner: free the memory of a payload that travels by ticket; harmless when it is gone."""
    if payload.HasField("ticket"):
        tensors.release(payload.ticket)
