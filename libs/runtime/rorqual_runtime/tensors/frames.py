"""`ReadChunk` messages made and read without protobuf's extra copies of the data.

The bytes are ordinary protobuf (checksum first, then data), so any gRPC client can read them.
"""

from __future__ import annotations

import struct

import xxhash
from google.protobuf.message import DecodeError
from rorqual_proto.v1 import tensor_pb2

from rorqual_runtime.errors import Corrupt

CHUNK_BYTES = 1 << 20
_CHECKSUM = struct.Struct("<BQ")
_CHECKSUM_TAG = 0x11  # field 2, fixed64
_DATA_TAG = 0x0A  # field 1, length-delimited


def encode_chunk(data: memoryview) -> bytes:
    """A serialised ReadChunk of `data`: one copy."""
    checksum = _CHECKSUM.pack(_CHECKSUM_TAG, xxhash.xxh3_64_intdigest(data))
    return b"".join((checksum, bytes((_DATA_TAG,)), _varint(data.nbytes), data))


def decode_chunk(frame: bytes) -> memoryview:
    """The verified data of a serialised ReadChunk, without a copy when `encode_chunk` made it.

    Raises: Corrupt when the checksum or the encoding is wrong.
    """
    data, checksum = _split(frame)
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise Corrupt("a chunk's checksum does not match its data")
    return data


def _split(frame: bytes) -> tuple[memoryview, int]:
    header_bytes = _CHECKSUM.size
    if len(frame) > header_bytes + 1 and frame[header_bytes] == _DATA_TAG:
        tag, checksum = _CHECKSUM.unpack_from(frame)
        size, start = _read_varint(frame, header_bytes + 1)
        if tag == _CHECKSUM_TAG and start + size == len(frame):
            return memoryview(frame)[start:], checksum
    try:
        chunk = tensor_pb2.ReadChunk.FromString(frame)
    except DecodeError as error:
        raise Corrupt("a chunk is not a ReadChunk message") from error
    return memoryview(chunk.data), chunk.xxh3_64


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(frame: bytes, position: int) -> tuple[int, int]:
    """(value, position after it); value -1 when it is not a varint of up to five bytes."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            break
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    return -1, position
