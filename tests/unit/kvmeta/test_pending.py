"""Late registrations are bounded, deduplicated, and come out oldest first."""

from rorqual_kvmeta.pending import PendingRecords
from rorqual_kvmeta.records import record_keys

from .blocks import records


def test_the_oldest_go_first_over_the_bound():
    pending = PendingRecords(2)
    pending.add(records([1, 2, 3]))
    assert (len(pending), pending.num_dropped) == (2, 1)
    assert (pending.take(1) == records([2])).all()
    assert (pending.take(10) == records([3])).all()
    assert len(pending) == 0


def test_repeated_and_forgotten_blocks():
    pending = PendingRecords(10)
    pending.add(records([1, 2]))
    pending.add(records([1], lifetime=5))
    pending.forget(record_keys(records([2, 9])))
    assert (pending.take(10) == records([1], lifetime=5)).all()


def test_what_is_cleared_does_not_come_back():
    pending = PendingRecords(10)
    pending.add(records([1], model=1, tenant=1))
    pending.add(records([2], model=1, tenant=2))
    pending.add(records([3], model=2, tenant=2))
    pending.clear(1, 2)
    assert len(pending) == 2
    pending.clear(None, None)
    assert len(pending) == 0
