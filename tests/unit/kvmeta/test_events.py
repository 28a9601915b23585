"""A gap, a restart and silence of a publisher are noticed; its first words are not a gap."""

from rorqual_kvmeta.events import PeerProgress


def test_consecutive_messages_miss_nothing():
    peers = PeerProgress()
    assert all(peers.observe("a", 1, seq, 0.0) for seq in (17, 18, 19))
    assert peers.observe("b", 5, 1, 0.0)
    assert peers.observe("a", 1, 20, 0.0)


def test_a_gap_is_noticed_once():
    peers = PeerProgress()
    peers.observe("a", 1, 1, 0.0)
    assert not peers.observe("a", 1, 3, 0.0)
    assert peers.observe("a", 1, 4, 0.0)


def test_a_repeated_or_older_message_is_no_progress():
    peers = PeerProgress()
    peers.observe("a", 1, 5, 0.0)
    assert not peers.observe("a", 1, 5, 0.0)


def test_a_restart_is_noticed_whatever_its_number():
    peers = PeerProgress()
    peers.observe("a", 1, 1, 0.0)
    assert not peers.observe("a", 2, 2, 0.0)
    assert peers.observe("a", 2, 3, 0.0)


def test_a_silent_publisher_is_named_once_and_may_come_back():
    peers = PeerProgress()
    peers.observe("a", 1, 1, 0.0)
    peers.observe("b", 1, 1, 9.0)
    assert peers.drop_silent(5.0) == ["a"]
    assert peers.drop_silent(5.0) == []
    assert peers.observe("a", 1, 40, 9.0)
