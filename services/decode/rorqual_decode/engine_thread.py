"""The engine thread: continuous batching over every running sequence.

It runs one forward after the other. What does not decide the next forward is done beside it, in a
thread of its own: see `step`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.placement import ComputeThreads
from rorqual_policy.blocks import BLOCK_TOKENS
from rorqual_policy.compute_threads import first_step_pause_s, should_spread_threads
from rorqual_runtime.errors import Internal

from rorqual_decode.block_writer import BlockTraits, BlockWriter
from rorqual_decode.forward_clock import ForwardClock
from rorqual_decode.generation import Emission, FinishReason
from rorqual_decode.growth import PageGrowth
from rorqual_decode.running import CompletedBlock, Running, WindowToKeep
from rorqual_decode.sampling import Draws, draw_tokens
from rorqual_decode.speculation import NO_SPECULATION, Speculation
from rorqual_decode.step import Committed, Planned
from rorqual_decode.step_times import StepTimes

_STEP_WEIGHT = 0.1
_PAGES_PAUSE_S = 0.02

log = logging.getLogger(__name__)


class ForwardModel(Protocol):
    """The part of a model that decode calls."""

    vocab_size: int

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor: ...

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor: ...


class DecodeEngine:
    """Steps all sequences together in its own thread.

    Each step: let go of cancelled sequences, take new ones in, guesses, one forward, one token a
    sequence and one more for each guess that holds.
    on_output and on_window are called in a thread beside the engine's, a step later, and must not
    block; on_window gets the window behind the last block that a sequence completed, once it has
    left.
    """

    def __init__(
        self,
        model: ForwardModel,
        cache: PagedKvCache,
        writer: BlockWriter,
        on_output: Callable[[list[Emission]], None],
        on_window: Callable[[WindowToKeep], None] = lambda kept: None,
        speculation: Speculation = NO_SPECULATION,
        step_times: StepTimes | None = None,
        growth: PageGrowth | None = None,
    ) -> None:
        """growth: None where every sequence comes with all the pages that it will need."""
        self._model = model
        self._cache = cache
        self._writer = writer
        self._on_output = on_output
        self._on_window = on_window
        self._speculation = speculation
        self.step_times = step_times
        """Of a step here, refined by what steps take; None = not calibrated."""
        self._growth = growth
        self.waiting_for_pages: tuple[Running, ...] = ()
        """As of the last step; for other threads to look at."""
        self._running: list[Running] = []
        self._arrived: list[Running] = []
        self._has_leaving = False
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="decode-engine", daemon=True)
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="decode-beside")
        self._committed = Committed()
        self.clock = ForwardClock()
        self.step_s = 0.0
        self.num_steps = 0

    def start(self) -> None:
        """Begin to step."""
        self._beside.submit(int).result()  # its thread exists: the engine's would hand on its CPU
        self._thread.start()

    @property
    def has_died(self) -> bool:
        """The thread ended by a fault: nothing steps any more."""
        was_started = self._thread.ident is not None
        return was_started and not self._thread.is_alive() and not self._is_closing

    def add(self, sequence: Running) -> None:
        """Let this sequence take part from the next step on; the engine owns it from here."""
        with self._changed:
            self._arrived.append(sequence)
            self._has_leaving |= sequence.is_leaving
            self._changed.notify()

    def cancel(self, sequence: Running) -> None:
        """Let go of the sequence at the next step; harmless when it has ended."""
        with self._changed:
            sequence.is_cancelled = True
            self._has_leaving = True
            self._changed.notify()

    def take_out(self, sequence: Running, on_out: Callable[[], None]) -> None:
        """Have the sequence back, pages and all: on_out is called, as on_output is, once no step
        touches it any more and the tokens of its last one are told. It is not called for a sequence
        that ends or is cancelled before."""
        with self._changed:
            sequence.on_out = on_out
            self._has_leaving = True
            self._changed.notify()

    def give_window(self, sequence: Running) -> None:
        """To on_window, of one that has ended, also once it was taken out. From any thread."""
        if sequence.kept is not None:
            self._on_window(sequence.kept)

    def close(self) -> None:
        """Stop after the step under way and free every sequence. Blocks for that step."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        for sequence in (*self._running, *self._arrived):
            sequence.hold.release()
        self._running, self._arrived = [], []

    def _run(self) -> None:
        threads = ComputeThreads()
        with torch.inference_mode():
            try:
                while self._wait_for_work():
                    self._let_leave()
                    if ready := self._ready():
                        threads.spread(should_spread_threads(len(ready)))
                        self._step_or_fail(ready)
                    elif self._running:
                        self._wait_for_pages()
                    if not self._running:
                        self.clock.rest()
                        self._tell_now()
            finally:
                self._beside.shutdown()
        self._tell_now()

    def _wait_for_work(self) -> bool:
        with self._changed:
            if not self._running:
                self._changed.wait_for(lambda: self._arrived or self._is_closing)
                self._changed.wait_for(
                    lambda: self._is_closing, timeout=first_step_pause_s(len(self._running))
                )
            self._running += self._arrived
            self._arrived = []
            return not self._is_closing

    def _let_leave(self) -> None:
        with self._changed:
            if not self._has_leaving:
                return
            self._has_leaving = False
            candidates, self._running = self._running + self._arrived, []
            self._arrived = []
            committed = self._committed
            for sequence in candidates:
                if not sequence.is_leaving:
                    self._running.append(sequence)
                elif sequence.is_cancelled:
                    committed.left.append(sequence)
                else:
                    committed.out.append(sequence)

    def _ready(self) -> list[Running]:
        """Those that take part in the next step: all that find pages for it."""
        if self._growth is None:
            return self._running
        ready = self._growth.ready(self._running)
        if len(ready) == len(self._running):
            self.waiting_for_pages = ()
        else:
            going = set(map(id, ready))
            self.waiting_for_pages = tuple(s for s in self._running if id(s) not in going)
        return ready

    def _wait_for_pages(self) -> None:
        self._tell_now()  # who has ended gives some back
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_leaving or self._arrived or self._is_closing, _PAGES_PAUSE_S
            )

    def _step_or_fail(self, sequences: Sequence[Running]) -> None:
        """At least one token for each of these, or an error."""
        started_s = time.perf_counter()
        committed, self._committed = self._committed, Committed()
        telling = self._beside.submit(self._tell, committed)
        try:
            self._committed = self._step(sequences)
        except Exception as err:
            log.exception("decode step failed")
            telling.result()
            self._on_output(self._fail(sequences, err))
        telling.result()
        took_s = time.perf_counter() - started_s
        self.step_s += (took_s - self.step_s) * (_STEP_WEIGHT if self.num_steps else 1.0)
        self.num_steps += 1

    def _step(self, sequences: Sequence[Running]) -> Committed:
        started_s = time.perf_counter()
        self._speculation.guess(sequences)
        planned = Planned.of(sequences)
        draws: Future[Draws] = self._beside.submit(planned.prepare, self._model.vocab_size)
        self.clock.begin()
        try:
            logits = self._model.forward([s.chunk for s in sequences], self._cache)
        finally:
            self.clock.end()
            draws.exception()  # the sequences are this thread's again
        draw_tokens(logits, planned.walks, draws.result())
        self._speculation.note_step(planned.num_rows, len(sequences))
        if self.step_times is not None:
            took_s = time.perf_counter() - started_s
            self.step_times.note(planned.num_rows, planned.kv_tokens, took_s)
        committed = Committed.of(planned.walks)
        for sequence, block in committed.blocks:
            self._keep_window(sequence, block)
        self._drop(committed.left)
        return committed

    def _drop(self, sequences: Sequence[Running]) -> None:
        if sequences:
            gone = set(map(id, sequences))
            self._running = [s for s in self._running if id(s) not in gone]

    def _tell_now(self) -> None:
        committed, self._committed = self._committed, Committed()
        self._tell(committed)

    def _tell(self, committed: Committed) -> None:
        """Everything of a step that no later step waits for."""
        if committed.walks:
            self._on_output(committed.emissions())
        for sequence, block in committed.blocks:
            self._store(sequence, block)
        for sequence in committed.left:
            if sequence.is_cancelled:
                self._writer.forget(sequence.spec.key)
            self.give_window(sequence)
            sequence.hold.release()
        for sequence in committed.out:
            on_out, sequence.on_out = sequence.on_out, None
            assert on_out is not None, "nobody wants it back"
            on_out()

    def _store(self, sequence: Running, block: CompletedBlock) -> None:
        spec = sequence.spec
        traits = BlockTraits(
            spec.traffic_class,
            provenance=spec.provenance,
            tenant=spec.tenant,
            position=block.num_tokens // BLOCK_TOKENS - 1,
            ttl_s=spec.cache_ttl_s,
        )
        self._writer.offer(spec.key, block.key, block.page, sequence.hold, traits)

    def _keep_window(self, sequence: Running, block: CompletedBlock) -> None:
        """The window behind a block, before the next forward writes to it. Of rows beyond the
        block, taken or not, there are no more than a window's rings can take back."""
        if sequence.window is None:
            return
        snapshot = self._model.save_window(self._cache, sequence.window, block.num_tokens)
        provenance = sequence.spec.provenance
        sequence.kept = WindowToKeep(block.key, block.num_tokens, snapshot.numpy(), provenance)

    def _fail(self, sequences: Sequence[Running], err: Exception) -> list[Emission]:
        """A failed step leaves unknown KV behind: every sequence in it ends with an error."""
        self._drop(sequences)
        for sequence in sequences:
            sequence.hold.release()
        error = Internal(f"decode failed: {type(err).__name__}")
        return [Emission(s.spec.key, (), (), FinishReason.ERROR, error) for s in sequences]
