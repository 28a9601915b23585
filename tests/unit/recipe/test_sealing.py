"""Sealed reasoning opens for whom it was made, unchanged, and for nobody else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_recipe.response_memory import ResponseMemory
from rorqual_recipe.sealing import (
    SealBinding,
    SealBroken,
    Sealer,
    WeakSealingKey,
    is_ours,
    parse_sealing_keys,
)
from rorqual_runtime.clock import ManualClock
from rorqual_runtime.errors import Unavailable

from tests.support.response_store import MemoryResponseStore

SEALER = Sealer([b"k" * 32], ttl_s=100.0)
OWNER = SealBinding("tenant", "model")
NOW = 1_800_000_000


@given(st.text(max_size=400))
def test_a_seal_opens_to_what_was_sealed(text: str) -> None:
    sealed = SEALER.seal(text, OWNER, NOW)
    assert is_ours(sealed)
    assert SEALER.open(sealed, OWNER, NOW + 100) == text


def test_the_same_reasoning_has_the_same_seal_and_another_time_another() -> None:
    assert SEALER.seal("thought", OWNER, NOW) == SEALER.seal("thought", OWNER, NOW)
    assert SEALER.seal("thought", OWNER, NOW) != SEALER.seal("thought", OWNER, NOW + 1)


def test_nothing_of_the_text_shows() -> None:
    sealed = SEALER.seal("secret " * 50, OWNER, NOW)
    raw = base64.urlsafe_b64decode(sealed.partition(".")[2] + "==")
    assert b"secret" not in raw


@settings(max_examples=50)
@given(st.data())
def test_a_damaged_seal_does_not_open(data) -> None:
    sealed = SEALER.seal("a thought", OWNER, NOW)
    position = data.draw(st.integers(0, len(sealed) - 1))
    char = data.draw(st.sampled_from("AZaz09-_.=é"))
    damaged = sealed[:position] + char + sealed[position + 1 :]
    if damaged == sealed:
        return
    with pytest.raises(SealBroken):
        assert SEALER.open(damaged, OWNER, NOW) != "a thought"


@pytest.mark.parametrize(
    ("binding", "now", "reason"),
    [
        (SealBinding("other", "model"), NOW, "another account or model"),
        (SealBinding("tenant", "other"), NOW, "another account or model"),
        (OWNER, NOW + 101, "expired"),
        (OWNER, NOW - 1000, "expired"),
    ],
)
def test_a_seal_says_why_it_does_not_open(binding, now: int, reason: str) -> None:
    with pytest.raises(SealBroken, match=reason):
        SEALER.open(SEALER.seal("x", OWNER, NOW), binding, now)


@pytest.mark.parametrize("foreign", ["", "gAAAAABm", "rq1.", "rq1.!!!", "rq1." + "A" * 40])
def test_what_is_no_seal_of_ours_is_told_apart(foreign: str) -> None:
    with pytest.raises(SealBroken):
        SEALER.open(foreign, OWNER, NOW)


def test_an_older_key_still_opens() -> None:
    rotated = Sealer([b"n" * 32, b"k" * 32], ttl_s=100.0)
    assert rotated.open(SEALER.seal("old", OWNER, NOW), OWNER, NOW) == "old"
    with pytest.raises(SealBroken, match="not in use"):
        SEALER.open(rotated.seal("new", OWNER, NOW), OWNER, NOW)


def test_short_keys_are_refused_without_repeating_them() -> None:
    assert parse_sealing_keys("") == []
    assert parse_sealing_keys(f"{'a' * 32}, {'b' * 32}") == [b"a" * 32, b"b" * 32]
    with pytest.raises(WeakSealingKey) as caught:
        parse_sealing_keys("hunter2")
    assert "hunter2" not in str(caught.value)


def memory(store: MemoryResponseStore, clock: ManualClock) -> ResponseMemory:
    return ResponseMemory(store, [], seal_ttl_s=1e9, clock=clock)


async def test_instances_agree_on_a_key_through_the_store() -> None:
    store, clock = MemoryResponseStore(), ManualClock()
    first, second = memory(store, clock), memory(store, clock)
    sealed = (await first.sealer()).seal("shared", OWNER, NOW)
    assert (await second.sealer()).open(sealed, OWNER, NOW) == "shared"


async def test_instances_agree_again_after_the_store_lost_the_key() -> None:
    store, clock = MemoryResponseStore(), ManualClock()
    first, second = memory(store, clock), memory(store, clock)
    old = (await first.sealer()).seal("old", OWNER, NOW)
    store.values.clear()
    new = (await second.sealer()).seal("new", OWNER, NOW)
    await clock.advance(60.0)
    sealer = await first.sealer()
    assert [sealer.open(sealed, OWNER, NOW) for sealed in (old, new)] == ["old", "new"]


async def test_without_store_and_key_nothing_is_sealed_with_a_key_of_ones_own() -> None:
    store, clock = MemoryResponseStore(), ManualClock()
    store.is_down = True
    with pytest.raises(Unavailable):
        await memory(store, clock).sealer()


async def test_a_known_key_outlasts_the_store() -> None:
    store, clock = MemoryResponseStore(), ManualClock()
    instance = memory(store, clock)
    sealed = (await instance.sealer()).seal("x", OWNER, NOW)
    store.is_down = True
    await clock.advance(60.0)
    assert (await instance.sealer()).open(sealed, OWNER, NOW) == "x"
