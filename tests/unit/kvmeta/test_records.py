"""Records are the same in Redis, on the bus and in arrays; what is no record is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_kvmeta.records import (
    RECORD,
    REPLAYED,
    VALUE_BYTES,
    Lifetimes,
    State,
    StoredBlock,
    from_events,
    from_hashes,
    from_values,
    record_keys,
    records_of,
    state_after,
    tag,
)
from rorqual_policy.provenance import Provenance

from .blocks import NOW, records

LIFETIMES = Lifetimes(chat_s=700.0, agent_s=300.5)


def test_a_block_is_its_record():
    block = StoredBlock(
        b"k" * 16, 114_688, False, "local", "tenant", Provenance.REPLAYED, position=7
    )
    (record,) = records_of("model", [block], LIFETIMES, NOW)
    assert record.tobytes()[:16] == block.key
    assert (record["used_unix_s"], record["lifetime_s"]) == (NOW, 301)
    assert (record["position"], record["size_bytes"]) == (7, 114_688)
    assert record["flags"] == State.LIVE | REPLAYED
    assert (record["model"], record["tenant"]) == (tag("model"), tag("tenant"))


def test_a_lifetime_of_its_own_goes_before_that_of_the_class():
    blocks = [
        StoredBlock(b"a" * 16, 1, True, "s"),
        StoredBlock(b"b" * 16, 1, True, "s", lifetime_s=5),
    ]
    assert records_of("m", blocks, LIFETIMES, NOW)["lifetime_s"].tolist() == [700, 5]


def test_redis_and_the_bus_give_back_what_went_in():
    made = records(range(5))
    packed = [record.tobytes() for record in made]
    hashes = [
        {row[:16]: row[16:] for row in packed[:3]},
        {row[:16]: row[16:] for row in packed[3:]},
    ]
    assert (from_hashes(hashes) == made).all()
    assert (from_values([r[:16] for r in packed], [r[16:] for r in packed]) == made).all()
    assert (from_events(b"".join(packed)) == made).all()
    assert record_keys(made).tobytes() == b"".join(row[:16] for row in packed)


@given(st.dictionaries(st.binary(max_size=20), st.binary(max_size=60)))
def test_foreign_fields_are_left_out_not_an_error(fields):
    fits = sum(len(k) == 16 and len(v) == VALUE_BYTES for k, v in fields.items())
    assert len(from_hashes([fields])) == fits
    assert len(from_events(b"x" * (RECORD.itemsize + 5))) == 1


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("missing", State.EVICTED),
        ("evicted", State.EVICTED),
        ("corrupt", State.CORRUPT),
        ("expired", State.EXPIRED),
    ],
)
def test_reasons_to_forget_are_remembered(reason, state):
    assert state_after(reason) is state
