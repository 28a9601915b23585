"""What a store lost reaches kvmeta in messages of a bounded size."""

from rorqual_runtime.blockstore import DamagedBlocks, ForgottenBlock
from rorqual_runtime.blockstore.notices import MAX_DAMAGED, MAX_KEYS, to_wire

from tests.support.blocks import key_of


def test_one_message_for_each_model_reason_and_bounded_number_of_blocks():
    many = [ForgottenBlock("a", key_of(number), "evicted") for number in range(MAX_KEYS + 5)]
    blocks = [
        *many,
        ForgottenBlock("b", key_of(1), "evicted"),
        ForgottenBlock("a", key_of(2), "corrupt"),
    ]
    found = {(m.model_fingerprint, m.reason, len(m.keys)) for m in to_wire(blocks)}
    assert found == {
        ("a", "evicted", MAX_KEYS),
        ("a", "evicted", 5),
        ("b", "evicted", 1),
        ("a", "corrupt", 1),
    }
    assert all(message.ByteSize() < 65_536 for message in to_wire(blocks))
    assert [key for m in to_wire(many) for key in m.keys] == [block.key for block in many]


def test_damage_is_remembered_until_it_is_asked_for_and_only_the_latest():
    damaged = DamagedBlocks()
    numbers = range(MAX_DAMAGED + 1)
    damaged.add([ForgottenBlock("a", key_of(number), "corrupt") for number in numbers])
    damaged.add([ForgottenBlock("a", key_of(9999), "evicted")])
    asked = (9999, 0, 1, 1, MAX_DAMAGED)
    known = [damaged.take(key_of(number)) for number in asked]
    assert known == [False, False, True, False, True]
