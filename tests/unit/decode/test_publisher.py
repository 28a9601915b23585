"""Every token reaches its reader once and in order, whatever the bus does."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_decode.generation import FinishReason, OutputStream
from rorqual_decode.publisher import TokenPublisher, bounded_slice
from rorqual_runtime.errors import Unavailable

from tests.support.waiting import WAIT_S
from tests.unit.decode.specs import output_stream


class Wire:
    """A `TokenSink` that can be cut; keeps (recipe, request, start, tokens, has finish)."""

    def __init__(self) -> None:
        self.is_connected = True
        self.num_failures = 0
        self.batches: list[tuple[str, list[tuple[str, int, list[int], bool]]]] = []

    async def send(self, recipe_id, slices) -> None:
        await asyncio.sleep(0)
        if self.num_failures:
            self.num_failures -= 1
            raise Unavailable()
        self.batches.append(
            (
                recipe_id,
                [
                    (
                        s.stream.spec.key.request_id,
                        s.start,
                        s.stream.token_ids[s.start : s.end],
                        s.with_finish,
                    )
                    for s in slices
                ],
            )
        )

    def tokens(self, request_id: str) -> list[int]:
        """What a reader that ignores repetitions has."""
        known: list[int] = []
        for _, slices in self.batches:
            for name, start, token_ids, _ in slices:
                if name == request_id:
                    assert start <= len(known), "a gap"
                    known += token_ids[len(known) - start :]
        return known

    def has_finish(self, request_id: str) -> bool:
        return any(s[0] == request_id and s[3] for _, slices in self.batches for s in slices)


@pytest.fixture
async def wire():
    return Wire()


@pytest.fixture
async def publisher(wire):
    publisher = TokenPublisher(wire)
    running = asyncio.create_task(publisher.run())
    yield publisher
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_one_batch_a_recipe_and_step(wire, publisher):
    streams = [output_stream(f"r{n}", f"recipe-{n % 2}") for n in range(4)]
    for n, stream in enumerate(streams):
        stream.token_ids.append(n)
        publisher.submit(stream)
    assert await publisher.flush(WAIT_S)
    assert sorted(recipe for recipe, _ in wire.batches) == ["recipe-0", "recipe-1"]


async def test_a_finish_without_tokens_is_sent(wire, publisher):
    stream = output_stream()
    stream.finish = FinishReason.ERROR
    publisher.submit(stream)
    assert await publisher.flush(WAIT_S)
    assert wire.has_finish("r")


async def test_a_failed_send_is_repeated_and_nothing_is_lost(wire, publisher):
    stream = output_stream()
    wire.num_failures = 2
    for token_id in range(5):
        stream.token_ids.append(token_id)
        publisher.submit(stream)
        await asyncio.sleep(0.02)
    assert await publisher.flush(WAIT_S)
    assert wire.tokens("r") == list(range(5))


async def test_nothing_is_sent_while_disconnected(wire, publisher):
    stream = output_stream()
    wire.is_connected = False
    stream.token_ids += [1, 2]
    publisher.submit(stream)
    assert not await publisher.flush(0.05)
    assert wire.batches == []
    wire.is_connected = True
    assert await publisher.flush(WAIT_S)
    assert wire.tokens("r") == [1, 2]


async def test_after_a_reconnect_the_last_slice_comes_again_as_it_was(wire, publisher):
    stream = output_stream()
    for token_id in (1, 2):
        stream.token_ids.append(token_id)
        publisher.submit(stream)
        await publisher.flush(WAIT_S)
    stream.token_ids.append(3)
    publisher.resubmit([stream])
    assert await publisher.flush(WAIT_S)
    assert wire.batches[-1][1] == [("r", 1, [2], False), ("r", 2, [3], False)]


async def test_a_dropped_stream_is_not_sent(wire, publisher):
    stream = output_stream()
    stream.token_ids.append(1)
    publisher.submit(stream)
    publisher.drop(stream.spec.key)
    assert await publisher.flush(WAIT_S)
    assert wire.batches == []


@given(st.integers(0, 60_000), st.sampled_from([None, 0, 20]))
def test_no_slice_is_over_the_message_budget(num_tokens, num_logprobs):
    stream = output_stream(num_logprobs=num_logprobs)
    stream.token_ids = [1] * num_tokens
    piece = bounded_slice(stream, 0)
    assert piece.num_bytes <= 40_000
    assert piece.end > 0 or num_tokens == 0


async def test_a_reader_is_told_where_its_generation_goes_on() -> None:
    """Before there is a token, and once."""
    wire, stream = Wire(), output_stream("r", num_logprobs=2)
    stream.go_on_behind([5, 6, 7])
    publisher = TokenPublisher(wire)
    publisher.submit(stream)
    sending = asyncio.create_task(publisher.run())
    assert await publisher.flush(WAIT_S)
    publisher.submit(stream)
    assert await publisher.flush(WAIT_S)
    sending.cancel()
    assert wire.batches == [("recipe-1", [("r", 3, [], False)])]
    assert [stream.can_give(start) for start in (2, 3, 4)] == [False, True, False]
    assert output_stream_without_scores().can_give(0)


def output_stream_without_scores() -> OutputStream:
    stream = output_stream("s")
    stream.go_on_behind([5, 6, 7])
    return stream
