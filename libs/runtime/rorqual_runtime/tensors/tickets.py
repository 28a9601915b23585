"""What stands in a ticket: shape and dtype that fit the bytes, endpoints that a reader can use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.errors import StaleTicket

_ITEM_BYTES = {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1}


def checked_shape(num_bytes: int, dtype: str, shape: Sequence[int] | None) -> tuple[int, ...]:
    """The shape to put into a ticket.

    Raises: ValueError when dtype and shape do not make num_bytes.
    """
    item_bytes = _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize
    dims = (num_bytes // item_bytes,) if shape is None else tuple(int(n) for n in shape)
    if math.prod(dims) * item_bytes != num_bytes:
        raise ValueError(f"{num_bytes} bytes are not {dims} of {dtype}")
    return dims


def grpc_address(ticket: tensor_pb2.TensorTicket) -> str:
    for endpoint in ticket.endpoints:
        if endpoint.WhichOneof("transport") == "grpc":
            return str(endpoint.grpc.address)
    raise StaleTicket("the ticket has no endpoint that can be reached from here")
