"""Late registrations are bounded, deduplicated, and come out oldest first."""

from rorqual_kvmeta.blocks import StoredBlock
from rorqual_kvmeta.pending import PendingBlocks


def block(number):
    return StoredBlock(bytes([number]) * 16, 1, True, "local")


def test_the_oldest_go_first_over_the_bound():
    pending = PendingBlocks(2)
    pending.add("m", [block(1), block(2), block(3)])
    assert (len(pending), pending.num_dropped) == (2, 1)
    assert pending.take(10) == ("m", [block(2), block(3)])
    assert len(pending) == 0


def test_one_batch_is_of_one_model():
    pending = PendingBlocks(10)
    pending.add("m1", [block(1)])
    pending.add("m2", [block(1), block(2)])
    assert pending.take(10) == ("m1", [block(1)])
    assert pending.take(1) == ("m2", [block(1)])
    assert pending.take(1) == ("m2", [block(2)])


def test_repeated_and_forgotten_blocks():
    pending = PendingBlocks(10)
    pending.add("m", [block(1), block(2)])
    pending.add("m", [block(1)])
    pending.forget("m", [block(2).key, block(9).key])
    assert pending.take(10) == ("m", [block(1)])
