"""A generation's life in the service, where something unforeseen meets it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from opentelemetry.trace import NoOpTracer
from rorqual_decode import convert
from rorqual_decode.admission import Admitted
from rorqual_decode.departure import Departures
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import Entry
from rorqual_decode.forward_clock import ForwardClock
from rorqual_decode.generation import Emission, FinishReason
from rorqual_decode.growth import PageGrowth
from rorqual_decode.pauses import Pauses
from rorqual_decode.publisher import TokenPublisher
from rorqual_decode.running import Running
from rorqual_decode.service import DecodeService
from rorqual_decode.settings import DecodeSettings
from rorqual_decode.taking_out import take_out
from rorqual_engine.speculation import NoDrafter
from rorqual_proto.v1 import decode_pb2, generation_pb2, router_pb2
from rorqual_runtime.cancelled import Phase
from rorqual_runtime.clock import WallClock
from rorqual_runtime.context import MessageContext
from rorqual_runtime.errors import Cancelled, ErrorCode, Unavailable

from tests.support.waiting import WAIT_S, soon, until
from tests.unit.decode.markov import sequence


class Quiet:
    """Takes every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Admitter(Quiet):
    async def admit(self, offer: convert.HandoverOffer, timeout_s: float) -> Admitted:
        running = cast(Running, offer.prompt)
        first = Emission(running.spec.key, (1,), (), None)
        return Admitted(running, first, [], np.zeros(5, np.int32), [])


class Engine(Quiet):
    """Steps nothing; lets go at once where it does."""

    has_died = False
    lets_go = True
    step_times = None
    step_s = 0.0

    def __init__(self) -> None:
        self.waiting_for_pages: tuple[Running, ...] = ()
        self.running: list[Running] = []
        self.waits: list[Any] = []
        self.clock = ForwardClock()
        self.given: list[Running] = []

    def add(self, running: Running) -> None:
        self.running.append(running)

    def give_window(self, running: Running) -> None:
        self.given.append(running)

    def cancel(self, running: Running) -> None:
        self.running.remove(running)
        running.hold.release()

    def take_out(self, running: Running, on_out: Any) -> None:
        self.running.remove(running)
        self.waits.append(on_out)
        if self.lets_go:
            on_out()


class Mover(Quiet):
    """Somebody has room for each, but for one whose tokens can't be packed."""

    async def place(self, spec: Any, num_tokens: int) -> str:
        if spec.key.request_id == "r1":
            raise KeyError("our bug")
        raise Unavailable("nobody has room")


class Place:
    """A service with everything around it replaced."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.settings = DecodeSettings(model_dir="none", drain_grace_s=0.0)
        self.sent: list[Any] = []
        self.publisher = TokenPublisher(cast(Any, self))
        self.departures = Departures(cast(Any, self.engine), cast(Any, Mover()), cast(Any, Quiet()))
        self.service = DecodeService(
            engine=cast(Any, self.engine),
            admitter=cast(Any, Admitter()),
            publisher=self.publisher,
            departures=self.departures,
            writer=cast(Any, Quiet()),
            settings=self.settings,
            clock=WallClock(),
            tracer=NoOpTracer(),
        )

    is_connected = True

    async def send(self, recipe_id: str, slices: list[Any]) -> None:
        self.sent += slices

    def open(self, number: int) -> Entry:
        running = sequence(number, NoDrafter())
        offer = SimpleNamespace(
            spec=running.spec,
            generation=generation_pb2.Generation(),
            prompt=running,
            compiled_grammar=None,
        )
        return self.service._open(cast(Any, offer))

    async def opened(self, count: int) -> list[Entry]:
        entries = [self.open(number) for number in range(count)]
        await until(lambda: len(self.engine.running) == count)
        return entries


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    sending = asyncio.create_task(place.publisher.run())
    yield place
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending


async def test_an_admission_that_was_cancelled_before_it_began_is_forgotten(place) -> None:
    entry = place.open(0)
    assert entry.admission is not None
    entry.admission.cancel()
    with pytest.raises(Cancelled):
        await place.service._admitted(entry.admission)
    assert place.service.num_active == 0
    assert not list(place.service.entries)
    await soon(place.service._all_ended.wait())


async def test_a_move_that_breaks_ends_that_generation_alone(place) -> None:
    entries = await place.opened(3)
    moving = asyncio.create_task(
        place.departures.move_all(
            place.service._to_move, place.service._moved, place.service._not_moved
        )
    )
    await until(lambda: entries[1].stream.finish is not None)
    assert entries[1].stream.error is not None
    assert entries[1].stream.error.code is ErrorCode.UNAVAILABLE
    assert not moving.done()
    assert [entry.is_active for entry in entries] == [True, False, True]
    for entry in (entries[0], entries[2]):
        place.service.give_up(entry)
        place.service.give_up(entry)  # it has ended: nothing happens any more
    await soon(moving)
    assert place.service.num_active == 0


async def test_who_ends_as_it_is_moved_counts_once(place) -> None:
    await place.opened(1)

    async def move(entry: Entry) -> bool:
        place.service._fail(entry, Unavailable("at the same moment"))
        return True

    place.departures.move = move
    await soon(place.departures.move_all(place.service._to_move, place.service._moved, print))
    assert place.service.num_active == 0


async def test_a_sequence_that_is_not_let_go_of_in_time_goes_on(place) -> None:
    (entry,) = await place.opened(1)
    place.engine.lets_go = False
    running = entry.sequence
    assert await take_out(cast(DecodeEngine, place.engine), entry, timeout_s=0.0) is None
    assert entry.leaving is None
    place.engine.waits.pop()()
    await until(lambda: place.engine.running == [running])
    assert entry.sequence is running and entry.is_active


async def test_an_answer_waits_for_its_own_stream_only(place) -> None:
    behind, entry = await place.opened(2)
    place.publisher.submit(entry.stream)
    waiting = asyncio.create_task(place.publisher.flush_one(entry.stream, 30.0))
    while not waiting.done():  # the other one always has news
        behind.stream.token_ids.append(1)
        place.publisher.submit(behind.stream)
        await asyncio.sleep(0)
    assert waiting.result()


class Memory:
    """Two pages, both in use."""

    cache = SimpleNamespace(num_free=0, layout=SimpleNamespace(page_bytes=10))


def pauses_of(place: Place, max_bytes: int) -> Pauses:
    growth = SimpleNamespace(num_wanted=lambda running: 5)
    return Pauses(
        cast(DecodeEngine, place.engine),
        cast(PageGrowth, growth),
        cast(Any, Memory()),
        entries=lambda: place.service.entries,
        give_up=place.service.give_up,
        max_bytes=max_bytes,
    )


async def test_nobody_is_given_up_once_somebody_stood_aside(place, monkeypatch) -> None:
    """Memory for one: who finds room behind it is not known before the engine has looked."""
    entries = await place.opened(3)
    place.engine.waiting_for_pages = tuple(place.engine.running)
    pauses = pauses_of(place, max_bytes=10)
    kv = SimpleNamespace(num_bytes=10)

    async def pause(entry: Entry) -> None:
        entry.paused, entry.sequence = cast(Any, (entry.sequence, kv)), None

    monkeypatch.setattr(pauses, "_pause", pause)
    await pauses.relieve()
    assert [entry.paused is not None for entry in entries] == [False, False, True]
    assert all(entry.is_active for entry in entries)
    place.engine.waiting_for_pages = tuple(place.engine.running[:2])
    await pauses.relieve()
    assert [entry.stream.finish for entry in entries] == [None, FinishReason.ERROR, None]


async def test_the_window_of_one_that_ends_while_it_stands_aside_is_kept(place) -> None:
    (entry,) = await place.opened(1)
    running, entry.sequence = entry.sequence, None
    entry.paused = cast(Any, (running, SimpleNamespace(num_bytes=10)))
    place.service._cancel(entry.key.choice, FinishReason.STOP)
    assert place.engine.given == [running]


async def test_host_memory_of_one_that_is_moved_counts(place) -> None:
    entries = await place.opened(2)
    pauses = pauses_of(place, max_bytes=15)
    assert pauses._has_memory(1)
    entries[0].moving = cast(Any, SimpleNamespace(num_bytes=10))
    assert not pauses._has_memory(1)


async def test_cancels_count_by_where_the_generation_was(place) -> None:
    entries = await place.opened(2)
    entries[1].departure = asyncio.create_task(asyncio.sleep(600))
    for entry in (*entries, entries[0]):  # of the last one nothing is left
        request = router_pb2.CancelRequest(request_id=entry.key.request_id)
        await place.service.on_cancel(request, MessageContext())
    counted = place.service.load_facts().num_cancelled
    assert counted == {Phase.DECODE: 1, Phase.MIGRATING: 1}
    assert place.service.num_active == 0


async def test_who_was_cut_off_is_told_again_what_it_was_told_last_and_nobody_else(place) -> None:
    cut_off, whole, heard = await place.opened(3)
    heard.stream.spec = replace(heard.stream.spec, recipe_id="recipe-2")
    place.service._cancel(whole.key.choice, FinishReason.STOP)
    place.publisher.submit(whole.stream)
    assert await place.publisher.flush(WAIT_S)
    place.sent.clear()
    request = decode_pb2.RepeatTokensRequest(recipe_ids=["recipe-0", cut_off.stream.spec.recipe_id])
    await place.service.on_repeat(request, MessageContext())
    assert await place.publisher.flush(WAIT_S)
    told = [(s.stream.spec.key, s.start, s.end, s.with_finish) for s in place.sent]
    assert told == [(cut_off.key, 0, 1, False), (whole.key, 1, 1, True)]
