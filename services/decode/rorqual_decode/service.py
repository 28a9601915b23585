"""Handlers of a decode instance, and what it keeps of each generation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.trace import Tracer
from rorqual_runtime.cancelled import CancelledIds, cancel_target
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
from rorqual_decode.admission import Admitter, PromptBlock
from rorqual_decode.block_writer import BlockWriter
from rorqual_decode.engine_thread import DecodeEngine
from rorqual_decode.generation import (
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
_RECENT_S = 5.0
_FLUSH_S = 2.0

log = get_logger(__name__)


@dataclass(eq=False, slots=True)
class Entry:
    """One generation of this instance, from the first offer until its tokens are forgotten."""

    stream: OutputStream
    span: GenerationSpan
    admission: asyncio.Task[None] | None = None
    sequence: Running | None = None
    """Set while the engine has it."""

    @property
    def is_active(self) -> bool:
        """It has not ended."""
        return self.stream.finish is None


class DecodeService:
    """Takes generations over, runs them and answers for their tokens. Lives on the event loop."""

    def __init__(
        self,
        *,
        engine: DecodeEngine,
        admitter: Admitter,
        publisher: TokenPublisher,
        writer: BlockWriter,
        settings: DecodeSettings,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._engine = engine
        self._admitter = admitter
        self._publisher = publisher
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._tracer = tracer
        self.guess_totals = GuessTotals()
        """Of all generations since the start."""
        self._entries: dict[GenerationKey, Entry] = {}
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
        entry = self._entries.get(offer.spec.key)
        is_duplicate = entry is not None
        if entry is None:
            self._refuse_new(offer.spec.key)
            entry = self._open(offer)
        if entry.admission is not None:
            await asyncio.shield(entry.admission)
        return convert.accepted_to_wire(is_duplicate)

    async def on_resend(
        self, request: convert.ResendMessage, context: MessageContext
    ) -> convert.ResendReplyMessage:
        """What a reader missed, as much as fits one message. Raises: NotFound."""
        entry = self._entries.get(convert.key_of(request))
        if entry is None or request.from_seq > len(entry.stream.token_ids):
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
                self._cancel(key, FinishReason.CANCELLED)
            elif key.choice_index == choice_index:
                self._cancel(key, FinishReason.STOP)

    async def on_reconnect(self) -> None:
        """Tokens that were on their way when the connection broke may be lost: send them again."""
        now_s = self._clock.monotonic_s()
        self._publisher.resubmit(
            entry.stream
            for entry in self._entries.values()
            if entry.is_active or now_s - entry.stream.finished_monotonic_s < _RECENT_S
        )

    # The engine's output

    def on_emissions(self, emissions: list[Emission]) -> None:
        """Take over what one step produced."""
        for emission in emissions:
            self.guess_totals.add(emission)
            entry = self._entries.get(emission.key)
            if entry is None or not entry.is_active:
                continue  # it was cancelled or timed out while the step ran
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
        if self._cancelled.covers(*key):
            raise Cancelled()
        if self._num_active >= self._settings.max_running:
            raise NoCapacity(f"{self._num_active} of {self._settings.max_running} are running")

    def _open(self, offer: convert.HandoverOffer) -> Entry:
        entry = Entry(OutputStream(offer.spec), GenerationSpan(self._tracer, offer.spec))
        self._entries[offer.spec.key] = entry
        self._num_active += 1
        self._all_ended.clear()
        with inherit_deadline(None):  # a caller that asks again joins this admission
            entry.admission = asyncio.get_running_loop().create_task(self._admit(entry, offer))
        entry.admission.add_done_callback(_note_seen)
        return entry

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
            raise (Draining() if self._is_draining else Cancelled()) from None
        except BaseException:
            self._forget(entry)
            raise
        entry.admission = None
        self._start(entry, admitted.sequence, admitted.first, admitted.prompt_blocks)

    def _start(
        self,
        entry: Entry,
        sequence: Running,
        first: Emission,
        prompt_blocks: list[PromptBlock],
    ) -> None:
        """The first token goes out before anything else happens to the sequence."""
        spec = sequence.spec
        self._take(entry, first)
        for block in prompt_blocks:
            self._writer.offer(spec.key, block.key, block.page, sequence.hold, block.traits)
        if entry.is_active:
            entry.sequence = sequence
            self._engine.add(sequence)
        else:
            sequence.hold.release()
            self._ended(entry)

    def _cancel(self, key: GenerationKey, finish: FinishReason) -> None:
        """finish: STOP keeps the tokens for a while, CANCELLED forgets them."""
        entry = self._entries[key]
        if entry.admission is not None:
            entry.admission.cancel()  # it forgets the entry once nothing writes to its pages
            return
        if entry.is_active:
            entry.stream.finish = finish
            self._ended(entry)
        self._publisher.drop(key)
        self._writer.forget(key)
        if finish is FinishReason.CANCELLED:
            self._entries.pop(key, None)

    def _fail(self, entry: Entry, error: ServingError) -> None:
        """End a running generation with an error for its reader."""
        self._take(entry, Emission(entry.stream.spec.key, (), (), FinishReason.ERROR, error))
        self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        """The stream has its finish: free what is left of it, keep its tokens a while."""
        entry.stream.finished_monotonic_s = self._clock.monotonic_s()
        sequence, entry.sequence = entry.sequence, None
        if sequence is not None:
            self._engine.cancel(sequence)
        entry.span.end(entry.stream)
        self._note_ended()

    def _forget(self, entry: Entry) -> None:
        """An admission failed: as if the offer had never come."""
        self._entries.pop(entry.stream.spec.key, None)
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
            if entry.sequence is not None and 0 < spec.deadline_unix_s < now_unix_s:
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
            del self._entries[key]

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, let running generations end, then fail those that are left."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended.wait(), max(0.0, timeout_s - 2 * _FLUSH_S))
        for entry in [e for e in self._entries.values() if e.is_active]:
            if entry.admission is not None:
                entry.admission.cancel()
            else:
                self._fail(entry, Unavailable("the decode instance shut down"))
        if not await self._publisher.flush(_FLUSH_S):
            log.warning("some tokens were not sent before the end")

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
            step_times=times.coefficients if (times := self._engine.step_times) else (),
        )

    def _running(self) -> Iterator[Running]:
        return (e.sequence for e in self._entries.values() if e.sequence is not None)


def _note_seen(task: asyncio.Task[None]) -> None:
    """A refused offer whose sender has gone is nobody's unhandled error."""
    if not task.cancelled():
        task.exception()
