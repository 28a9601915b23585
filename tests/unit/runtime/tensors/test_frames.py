"""Frames are ordinary ReadChunk messages and tell when they are damaged."""

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.errors import Corrupt
from rorqual_runtime.tensors.frames import decode_chunk, encode_chunk


@given(st.binary(max_size=600))
def test_any_protobuf_client_reads_what_we_send(data):
    chunk = tensor_pb2.ReadChunk.FromString(encode_chunk(memoryview(data)))
    assert chunk.data == data
    assert chunk.xxh3_64 == xxhash.xxh3_64_intdigest(data)


@given(st.binary(max_size=600))
def test_we_read_our_own_frames_and_those_of_any_protobuf_server(data):
    assert decode_chunk(encode_chunk(memoryview(data))) == data
    chunk = tensor_pb2.ReadChunk(data=data, xxh3_64=xxhash.xxh3_64_intdigest(data))
    assert decode_chunk(chunk.SerializeToString()) == data


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_or_a_cut_is_corrupt(data, draw):
    frame = bytearray(encode_chunk(memoryview(data)))
    if draw.draw(st.booleans()):
        frame[draw.draw(st.integers(0, len(frame) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    else:
        del frame[draw.draw(st.integers(0, len(frame) - 1)) :]
    with pytest.raises(Corrupt):
        decode_chunk(bytes(frame))
