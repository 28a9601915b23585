"""Finished blocks: their keys, their way to the store, and the pages they keep."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_decode.block_chain import BlockChain
from rorqual_decode.block_writer import BlockTraits, BlockWriter
from rorqual_decode.generation import GenerationKey
from rorqual_decode.page_hold import PageHold
from rorqual_policy.blocks import ImageSpan, block_keys, root_key
from rorqual_policy.provenance import BlockOrigin, Provenance, StoredReplays

KEY = GenerationKey("r", 0)


@settings(max_examples=30)
@given(num_prompt=st.integers(1, 400), num_output=st.integers(0, 400))
def test_keys_of_a_growing_sequence_are_those_of_the_whole(num_prompt, num_output):
    token_ids = [(7 * n) % 1000 for n in range(num_prompt + num_output)]
    names = {"fingerprint": "f", "namespace": "n"}
    keys = block_keys(token_ids[:num_prompt], **names)
    chain = BlockChain(
        keys[-1] if keys else root_key(**names), token_ids[len(keys) * 128 : num_prompt]
    )
    keys += [key for token in token_ids[num_prompt:] if (key := chain.push(token)) is not None]
    assert keys == block_keys(token_ids, **names)


@settings(max_examples=30)
@given(num_prompt=st.integers(100, 400), first=st.integers(0, 90), num_output=st.integers(0, 200))
def test_keys_go_on_behind_images_as_those_of_the_whole(num_prompt, first, num_output):
    token_ids = [5] * num_prompt + list(range(num_output))
    middle = (first + num_prompt) // 2
    images = [ImageSpan(first, middle - first, b"a"), ImageSpan(middle, num_prompt - middle, b"b")]
    names = {"fingerprint": "f", "namespace": "n"}
    keys = block_keys(token_ids[:num_prompt], images=images, **names)
    keyed = len(keys) * 128
    rest = [image.seen_from(keyed) for image in images if image.end > keyed]
    chain = BlockChain(keys[-1] if keys else root_key(**names), token_ids[keyed:num_prompt], rest)
    keys += [key for token in token_ids[num_prompt:] if (key := chain.push(token)) is not None]
    assert keys == block_keys(token_ids, images=images, **names)


class Lease:
    def __init__(self) -> None:
        self.num_releases = 0

    def release(self) -> None:
        self.num_releases += 1


def test_pages_are_free_after_the_last_holder():
    lease = Lease()
    hold = PageHold(lease)
    hold.retain()
    hold.release()
    assert lease.num_releases == 0
    hold.release()
    assert lease.num_releases == 1


class GatedStore:
    """Stores when told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.blocks: dict[bytes, bytes] = {}
        self.ttls_s: dict[bytes, float] = {}
        self.marks: dict[bytes, int] = {}
        self.is_full = False

    def put(self, fingerprint, key, data, *, ttl_s, mark) -> bool:
        self.entered.set()
        assert self.gate.wait(30)
        if self.is_full:
            return False
        self.blocks[key] = bytes(memoryview(data))
        self.ttls_s[key], self.marks[key] = ttl_s, mark
        return True


@pytest.fixture
def store():
    return GatedStore()


@pytest.fixture
def stored():
    return []


@pytest.fixture
def writer(store, stored):
    writer = BlockWriter(
        store,
        fingerprint="f",
        read_page=lambda page: np.full(4, page, np.uint8),
        lifetime_s=lambda traffic_class: 100.0 * traffic_class,
        mark=lambda traits: traits.position,
        on_stored=stored.append,
        max_queued=2,
    )
    writer.start()
    yield writer
    store.gate.set()
    writer.close(5)


def test_blocks_are_stored_and_told_and_their_pages_freed(writer, store, stored):
    lease = Lease()
    hold = PageHold(lease)
    store.gate.set()
    assert writer.offer(KEY, b"a", 3, hold, BlockTraits(1))
    hold.release()
    writer.close(5)
    assert store.blocks == {b"a": b"\3\3\3\3"}
    assert [(block.key, block.num_bytes) for block in stored] == [(b"a", 4)]
    assert lease.num_releases == 1


def test_a_block_is_kept_as_long_as_its_traffic_class_says(writer, store):
    store.gate.set()
    hold = PageHold(Lease())
    writer.offer(KEY, b"a", 0, hold, BlockTraits(1))
    writer.offer(KEY, b"b", 1, hold, BlockTraits(2))
    writer.close(5)
    assert store.ttls_s == {b"a": 100.0, b"b": 200.0}


def test_replayed_blocks_are_left_out_as_the_policy_says(store, stored):
    writer = BlockWriter(
        store,
        fingerprint="f",
        read_page=lambda page: np.full(4, page, np.uint8),
        lifetime_s=lambda traffic_class: 1.0,
        mark=lambda traits: traits.position,
        on_stored=stored.append,
        max_queued=9,
        stored_replays=StoredReplays.CONTINUATION,
    )
    hold = PageHold(Lease())
    replayed = {"provenance": Provenance.REPLAYED, "position": 5}
    assert not writer.offer(KEY, b"a", 0, hold, BlockTraits(1, BlockOrigin.PROMPT, **replayed))
    assert writer.offer(KEY, b"b", 1, hold, BlockTraits(1, **replayed))
    assert writer.offer(KEY, b"c", 2, hold, BlockTraits(1, BlockOrigin.PROMPT))
    assert (writer.num_left_out, writer.num_queued) == (1, 2)
    store.gate.set()
    writer.start()
    writer.close(5)
    assert store.marks == {b"b": 5, b"c": 0}


def test_a_full_queue_drops_and_counts_and_never_waits(writer, store):
    hold = PageHold(Lease())
    assert writer.offer(KEY, b"0", 0, hold, BlockTraits(1))
    assert store.entered.wait(30)
    accepted = [writer.offer(KEY, bytes([n]), n, hold, BlockTraits(1)) for n in range(4)]
    assert accepted == [True, True, False, False]
    assert writer.num_dropped == 2


def test_a_forgotten_generation_holds_only_what_is_being_written(writer, store):
    lease = Lease()
    hold = PageHold(lease)
    for n in range(3):
        writer.offer(KEY, bytes([n]), n, hold, BlockTraits(1))
        assert store.entered.wait(30)
    hold.release()
    writer.forget(KEY)
    assert (lease.num_releases, writer.num_queued) == (0, 1)
    store.gate.set()
    writer.close(5)
    assert lease.num_releases == 1
    assert len(store.blocks) == 1


def test_what_the_store_refuses_is_not_told(writer, store, stored):
    store.is_full = True
    store.gate.set()
    writer.offer(KEY, b"a", 3, PageHold(Lease()), BlockTraits(1))
    writer.close(5)
    assert stored == []
    assert writer.num_failed == 1
