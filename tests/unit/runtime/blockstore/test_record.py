"""A record's header proves whose it is; any damage to it is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_runtime.blockstore.record import (
    HEADER_BYTES,
    BadRecord,
    BlockName,
    pack_header,
    parse_header,
)

KEYS = st.binary(min_size=1, max_size=32)


def header_of(name: BlockName, payload: bytes = b"payload") -> bytes:
    return pack_header(name, memoryview(payload), now_unix_s=1.0, expires_unix_s=5.0)


@given(st.text(max_size=20), KEYS, st.binary(max_size=50))
def test_a_header_comes_back_as_it_was_written(fingerprint, key, payload):
    name = BlockName.of(fingerprint, key)
    raw = header_of(name, payload)
    assert len(raw) == HEADER_BYTES
    header = parse_header(raw, name)
    assert (header.num_payload_bytes, header.expires_unix_s) == (len(payload), 5.0)
    header.verify_payload(payload)
    with pytest.raises(BadRecord):
        header.verify_payload(payload + b"x")
    assert BlockName.of_file(name.file_name) == name


@given(KEYS, KEYS, st.sampled_from("ab"), st.sampled_from("ab"))
def test_a_header_fits_no_other_block(key, other_key, fingerprint, other_fingerprint):
    name = BlockName.of(fingerprint, key)
    other = BlockName.of(other_fingerprint, other_key)
    if name == other:
        return
    assert name.file_name != other.file_name
    with pytest.raises(BadRecord):
        parse_header(header_of(name), other)


@given(st.integers(0, 119), st.integers(0, 7), st.integers(0, HEADER_BYTES - 1))
def test_a_flipped_bit_or_a_cut_is_found(position, bit, length):
    name = BlockName.of("model", b"0123456789abcdef")
    raw = header_of(name)
    flipped = bytearray(raw)
    flipped[position] ^= 1 << bit
    for bad in (flipped, raw[:length]):
        with pytest.raises(BadRecord):
            parse_header(bad, name)


@pytest.mark.parametrize("key", [b"", b"x" * 33])
def test_keys_have_bounds(key):
    with pytest.raises(ValueError):
        BlockName.of("model", key)
