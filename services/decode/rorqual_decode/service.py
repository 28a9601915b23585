"""Handlers of a decode instance, and what it keeps of each generation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

from opentelemetry.trace import Tracer
from rorqual_policy.drain import plan_drain
from rorqual_runtime.cancelled import CancelledIds, Phase, cancel_target
from rorqual_runtime.clock import Clock
from rorqual_runtime.context import MessageContext, inherit_deadline
from rorqual_runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    Draining,
    NoCapacity,
    NotFound,
    ServingError,
    Unavailable,
)
from rorqual_runtime.logs import get_logger

from rorqual_decode import convert
from rorqual_decode.admission import Admitted, Admitter
from rorqual_decode.block_writer import BlockWriter
from rorqual_decode.departure import Departures
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.entry import NO_TOKENS, Entry
from rorqual_decode.generation import (
    ChoiceKey,
    Emission,
    FinishReason,
    GenerationKey,
    GenerationSpec,
    GuessTotals,
    OutputStream,
)
from rorqual_decode.generation_span import GenerationSpan
from rorqual_decode.load_facts import LoadFacts
from rorqual_decode.publisher import TokenPublisher, bounded_slice
from rorqual_decode.running import Running
from rorqual_decode.settings import DecodeSettings

_SWEEP_S = 0.25
_RECENT_S = 15.0
"""What ended in this time may have been sent over a connection that was broken already: that takes
seconds to be noticed."""
_FLUSH_S = 2.0

log = get_logger(__name__)


class DecodeService:
    """Takes generations over, runs them and answers for their tokens. Lives on the event loop."""

    def __init__(
        self,
        *,
        engine: DecodeEngine,
        admitter: Admitter,
        publisher: TokenPublisher,
        departures: Departures,
        writer: BlockWriter,
        settings: DecodeSettings,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._engine = engine
        self._admitter = admitter
        self._publisher = publisher
        self._departures = departures
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._tracer = tracer
        self.guess_totals = GuessTotals()
        """Of all generations since the start."""
        self._entries: dict[ChoiceKey, Entry] = {}
        self._cancelled = CancelledIds(clock)
        self._num_active = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._is_draining = False

    # Requests from other services

    async def on_handover(
        self, request: convert.HandoverMessage, context: MessageContext
    ) -> convert.HandoverReplyMessage:
        """Take a prompt over; answered once its KV is verified and here. Idempotent.

        Raises: Draining, NoCapacity, Cancelled, and what `Admitter.admit` raises.
        """
        offer = convert.offer_from_wire(request)
        key = offer.spec.key
        self._drop_before(key.choice, key.run)
        entry = self._entries.get(key.choice)
        is_duplicate = entry is not None
        if entry is None:
            self._refuse_new(key)
            entry = self._open(offer)
        elif entry.key.run > key.run:
            raise Cancelled("a later run of this generation is here")
        if entry.admission is not None:
            await self._admitted(entry.admission)
        # Whoever hands over lets go on our answer; its reader must know of us by then.
        if not await self._publisher.flush_one(entry.stream, _FLUSH_S):
            log.warning("a reader does not know yet", extra={"request_id": key.request_id})
        return convert.accepted_to_wire(is_duplicate)

    async def on_resend(
        self, request: convert.ResendMessage, context: MessageContext
    ) -> convert.ResendReplyMessage:
        """What a reader missed, as much as fits one message. Raises: NotFound."""
        entry = self._entries.get(convert.choice_of(request))
        if entry is None or not entry.stream.can_give(request.from_seq):
            raise NotFound("no such tokens are kept here")
        return convert.resend_to_wire(bounded_slice(entry.stream, request.from_seq))

    async def on_cancel(self, request: convert.CancelMessage, context: MessageContext) -> None:
        """Let go of a request, or of one of its choices, at once.

        A single choice ends because its reader found a stop string. Its tokens are kept as any
        ended one's: a recipe instance that takes the request over reads all choices from their
        beginning.
        """
        request_id, choice_index = cancel_target(request)
        self._cancelled.add(request_id, choice_index)
        for key in [k for k in self._entries if k.request_id == request_id]:
            if choice_index is None:
                self._note_cancelled(self._entries[key])
                self._cancel(key, FinishReason.CANCELLED)
            elif key.choice_index == choice_index:
                self._cancel(key, FinishReason.STOP)

    async def on_drop_runs(self, request: convert.DropRunsMessage, context: MessageContext) -> None:
        """Let go of a generation that goes on elsewhere: we were away, and did not know it."""
        self._drop_before(convert.choice_of(request), request.before_run)

    async def on_reconnect(self) -> None:
        """Tokens that were on their way when the connection broke may be lost: send them again."""
        now_s = self._clock.monotonic_s()
        self._publisher.resubmit(
            entry.stream
            for entry in self._entries.values()
            if entry.is_active or now_s - entry.stream.finished_monotonic_s < _RECENT_S
        )

    async def on_repeat(self, request: convert.RepeatMessage, context: MessageContext) -> None:
        """Readers that were cut off may not even know that what they wait for is here: each stream
        tells them its last again, and they ask for what was before it."""
        recipe_ids = set(request.recipe_ids)
        streams = (entry.stream for entry in self._entries.values())
        self._publisher.resubmit(s for s in streams if s.spec.recipe_id in recipe_ids)

    # The engine's output

    def on_emissions(self, emissions: list[Emission]) -> None:
        """Take over what one step produced."""
        for emission in emissions:
            self.guess_totals.add(emission)
            entry = self._entries.get(emission.key.choice)
            if entry is None or entry.key != emission.key or not entry.is_active:
                continue  # it was cancelled, timed out or gone on elsewhere while the step ran
            self._take(entry, emission)
            if emission.finish is not None:
                entry.sequence = None  # the engine has let go of it already
                self._ended(entry)

    def _take(self, entry: Entry, emission: Emission) -> None:
        stream = entry.stream
        if not stream.token_ids and emission.token_ids:
            stream.first_token_unix_s = self._clock.now_unix_s()
        stream.append(emission)
        self._publisher.submit(stream)

    # Life of one generation

    def _refuse_new(self, key: GenerationKey) -> None:
        if self._is_draining:
            raise Draining()
        if self._cancelled.covers(*key.choice):
            raise Cancelled()
        if self._is_short():
            raise NoCapacity("others wait for KV pages")
        if self._num_active >= self._settings.max_running:
            raise NoCapacity(f"{self._num_active} of {self._settings.max_running} are running")

    def _is_short(self) -> bool:
        """What runs here already needs the pages that come free."""
        is_waiting = bool(self._engine.waiting_for_pages)
        return is_waiting or any(entry.paused for entry in self._entries.values())

    def _open(self, offer: convert.HandoverOffer) -> Entry:
        span = GenerationSpan(self._tracer, offer.spec, lambda: self._engine.clock.times)
        entry = Entry(OutputStream(offer.spec), span, convert.origin_of(offer))
        self._entries[entry.key.choice] = entry
        self._num_active += 1
        self._all_ended.clear()
        with inherit_deadline(None):  # a caller that asks again joins this admission
            entry.admission = asyncio.get_running_loop().create_task(self._admit(entry, offer))
        entry.admission.add_done_callback(partial(self._note_admission, entry))
        return entry

    async def _admitted(self, admission: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(admission)
        except asyncio.CancelledError:
            if admission.cancelled():
                raise self._refusal() from None
            raise

    def _refusal(self) -> ServingError:
        return Draining() if self._is_draining else Cancelled()

    def _note_admission(self, entry: Entry, task: asyncio.Task[None]) -> None:
        """A refused offer whose sender has gone is nobody's unhandled error."""
        if task.cancelled():
            self._forget(entry)  # it had not begun: `_admit` ends no other way by a cancellation
        else:
            task.exception()

    async def _admit(self, entry: Entry, offer: convert.HandoverOffer) -> None:
        timeout_s = self._settings.handover_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                admitted = await self._admitter.admit(offer, timeout_s)
        except TimeoutError:
            self._forget(entry)
            raise Unavailable(f"the handover took longer than {timeout_s:.1f} s") from None
        except asyncio.CancelledError:
            self._forget(entry)
            raise self._refusal() from None
        except BaseException:
            self._forget(entry)
            raise
        entry.admission = None
        self._start(entry, admitted)

    def _start(self, entry: Entry, admitted: Admitted) -> None:
        """The first token goes out before anything else happens to the sequence."""
        sequence = admitted.sequence
        spec = sequence.spec
        entry.prompt_ids = admitted.prompt_ids
        if admitted.output_ids:
            entry.stream.go_on_behind(admitted.output_ids)
        self._take(entry, admitted.first)
        for block in admitted.prompt_blocks:
            self._writer.offer(spec.key, block.key, block.page, sequence.hold, block.traits)
        if entry.is_active:
            entry.sequence = sequence
            self._engine.add(sequence)
        else:
            sequence.hold.release()
            self._ended(entry)

    def _drop_before(self, choice: ChoiceKey, run: int) -> None:
        """Let go of an earlier run of this generation."""
        entry = self._entries.get(choice)
        if entry is not None and entry.key.run < run:
            self._cancel(choice, FinishReason.CANCELLED)
            self._entries.pop(choice, None)

    def _cancel(self, choice: ChoiceKey, finish: FinishReason) -> None:
        """finish: STOP keeps the tokens for a while, CANCELLED forgets them."""
        entry = self._entries[choice]
        if entry.admission is not None:
            entry.admission.cancel()  # it forgets the entry once nothing writes to its pages
            return
        if entry.is_active:
            entry.stream.finish = finish
            self._ended(entry)
        self._publisher.drop(entry.key)
        self._writer.forget(entry.key)
        if finish is FinishReason.CANCELLED:
            self._entries.pop(choice, None)

    def _note_cancelled(self, entry: Entry) -> None:
        """One that is still handed over is counted by whoever does that."""
        if entry.departure is not None:
            self._cancelled.num_by_phase[Phase.MIGRATING] += 1
        elif entry.is_active and entry.admission is None:
            self._cancelled.num_by_phase[Phase.DECODE] += 1

    def give_up(self, entry: Entry) -> None:
        """There is no memory for it any more."""
        if entry.is_active:
            self._fail(entry, Unavailable("the decode instance is out of memory"))

    def _fail(self, entry: Entry, error: ServingError) -> None:
        """End a running generation with an error for its reader."""
        self._take(entry, Emission(entry.stream.spec.key, (), (), FinishReason.ERROR, error))
        self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        """The stream has its finish: free what is left of it, keep its tokens a while."""
        entry.stream.finished_monotonic_s = self._clock.monotonic_s()
        entry.prompt_ids = NO_TOKENS
        if entry.paused is not None:
            self._engine.give_window(entry.paused[0])
        sequence, entry.sequence, entry.paused = entry.sequence, None, None
        if sequence is not None:
            self._engine.cancel(sequence)
        elif entry.departure is not None:
            entry.departure.cancel()  # frees what it holds
        if entry.leaving is not None and not entry.leaving.done():
            entry.leaving.set_result(False)
        entry.span.end(entry.stream)
        self._note_ended()

    def _forget(self, entry: Entry) -> None:
        """An admission failed: as if the offer had never come."""
        if self._entries.get(entry.key.choice) is entry:
            del self._entries[entry.key.choice]
        entry.span.drop()
        self._note_ended()

    def _note_ended(self) -> None:
        self._num_active -= 1
        if self._num_active == 0:
            self._all_ended.set()

    # Upkeep

    async def sweep_forever(self) -> None:
        """End what is past its deadline and forget what nobody can ask for any more.

        Raises: RuntimeError once the engine thread has died, which ends the service.
        """
        while True:
            await self._clock.sleep(_SWEEP_S)
            if self._engine.has_died:
                raise RuntimeError("the engine thread has died")
            self.sweep()

    def sweep(self) -> None:
        """One round of `sweep_forever`."""
        now_s, now_unix_s = self._clock.monotonic_s(), self._clock.now_unix_s()
        old: list[GenerationSpec] = []
        for entry in list(self._entries.values()):
            spec = entry.stream.spec
            is_here = entry.sequence is not None or entry.paused is not None
            if is_here and 0 < spec.deadline_unix_s < now_unix_s:
                self._fail(entry, DeadlineExceeded("the deadline passed during generation"))
            elif not entry.is_active and self._is_old(entry.stream, now_s):
                old.append(spec)
        self._forget_tokens(old, now_unix_s)

    def _is_old(self, stream: OutputStream, now_s: float) -> bool:
        return now_s - stream.finished_monotonic_s > self._settings.emitted_keep_s

    def _forget_tokens(self, old: list[GenerationSpec], now_unix_s: float) -> None:
        """A choice whose siblings may still run somewhere is kept longer, within a bound."""
        kept = [spec for spec in old if spec.has_siblings and spec.deadline_unix_s > now_unix_s]
        kept = kept[max(0, len(kept) - self._settings.max_kept_choices) :]
        for key in {spec.key for spec in old} - {spec.key for spec in kept}:
            del self._entries[key.choice]

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let running generations end, move those that have not, and give up on
        those that nobody takes: their readers have them go on elsewhere."""
        self._is_draining = True
        plan = plan_drain(timeout_s, self._settings.drain_grace_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), plan.grace_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(plan.move_s):
                await self._departures.move_all(self._to_move, self._moved, self._not_moved)
        for entry in [e for e in self._entries.values() if e.is_active]:
            if entry.admission is not None:
                entry.admission.cancel()
            else:
                self._fail(entry, Unavailable("the decode instance shut down"))
        if not await self._publisher.flush(_FLUSH_S):
            log.warning("some tokens were not sent before the end")

    def _to_move(self) -> list[Entry]:
        return [e for e in self._entries.values() if e.is_active and e.admission is None]

    def _moved(self, entry: Entry) -> None:
        """Another instance has it, as if it had never been here."""
        self._entries.pop(entry.key.choice, None)
        entry.span.end(entry.stream)
        self._note_ended()

    def _not_moved(self, entry: Entry) -> None:
        self._fail(entry, Unavailable("the generation could not be moved"))

    @property
    def entries(self) -> Iterable[Entry]:
        """All generations that are known here."""
        return self._entries.values()

    @property
    def num_active(self) -> int:
        """Generations being taken over or running."""
        return self._num_active

    def load_facts(self) -> LoadFacts:
        """What the next load report says."""
        running = list(self._running())
        return LoadFacts(
            num_active_requests=self._num_active,
            num_running=self._num_active,
            max_running=self._settings.max_running,
            kv_tokens=sum(sequence.next_position for sequence in running),
            step_s=self._engine.step_s,
            guesses=self.guess_totals,
            num_moved=self._departures.num_moved,
            step_times=times.coefficients if (times := self._engine.step_times) else (),
            num_cancelled=self._cancelled.num_by_phase,
        )

    def _running(self) -> Iterator[Running]:
        return (e.sequence for e in self._entries.values() if e.sequence is not None)
