"""Records survive encoding, lifetimes grow, and a prefix ends at the first gap."""

from hypothesis import given
from hypothesis import strategies as st
from rorqual_kvmeta.blocks import BlockRecord, Lifetimes, longest_prefix, redis_keys

NOW = 1_800_000_000.0
LIFETIMES = Lifetimes(chat_s=700.0, agent_s=300.0, expired_memory_s=100.0, touch_share=0.05)
RECORDS = st.builds(
    BlockRecord,
    expires_unix_s=st.floats(NOW - 1000, NOW + 1000),
    is_chat=st.booleans(),
    size_bytes=st.integers(0, 2**32 - 1),
    store=st.text(max_size=20),
)


@given(RECORDS)
def test_a_record_survives_encoding(record):
    assert BlockRecord.decode(record.encode()) == record


@given(st.binary(max_size=40))
def test_foreign_values_are_unknown_not_an_error(value):
    record = BlockRecord.decode(value)
    assert record is None or value[0] == 1


@given(st.lists(st.one_of(st.none(), RECORDS), max_size=12))
def test_prefix_ends_at_the_first_block_that_is_not_alive(records):
    match = longest_prefix(records, NOW)
    alive = [record is not None and record.expires_unix_s > NOW for record in records]
    assert all(alive[: match.num_blocks])
    if match.num_blocks == len(records):
        assert match.miss_reason == ""
    else:
        missing = records[match.num_blocks]
        assert match.miss_reason == ("never_stored" if missing is None else "expired")
        assert not alive[match.num_blocks]


@given(RECORDS)
def test_a_use_never_shortens_a_life(record):
    touched = LIFETIMES.touched(record, NOW)
    if touched is None:
        lifetime_s = LIFETIMES.chat_s if record.is_chat else LIFETIMES.agent_s
        assert record.expires_unix_s >= NOW + lifetime_s * 0.95
    else:
        assert touched.expires_unix_s > record.expires_unix_s


def test_names_differ_by_model_and_key():
    keys = [b"a" * 16, b"b" * 16]
    names = redis_keys("m1", keys) + redis_keys("m2", keys)
    assert len(set(names)) == 4
