"""The DeepSeek V4.1 model of the small configuration: prefill with and without the late cut, decode
by batch, and the engine against a plain reading of the same formulas.

The plain side is the model in fp32: torch operation by torch operation, one sequence at a time,
every row through every layer. All sides run in turns in this process on the same weights; ratios
are medians of each round's own, so a busy neighbour hits both sides alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rorqual_engine.device import configure_threads

NUM_THREADS = configure_threads()

import numpy as np  # noqa: E402
from rorqual_engine.batch import SequenceChunk  # noqa: E402
from rorqual_engine.kv import PageLease  # noqa: E402
from rorqual_engine.models import CausalModel, load_model  # noqa: E402
from rorqual_engine.prepare.random_v41 import write_random_v41  # noqa: E402

from bench.report import emit  # noqa: E402

LONG_TOKENS, CHUNK_TOKENS, SHORT_TOKENS = 4096, 512, 512
BATCHES = (1, 4, 16, 32)
COMPARED_BATCH = 16
CONTEXT_TOKENS, NUM_STEPS = 200, 10
CUT_GOAL = 1.7
"""Prefill speed with the late cut over that without, half the layers being late."""
PLAIN_GOAL = 5.0
"""The engine's speed over the plain side's, in prefill and in decode."""


class Side:
    """A model and how it runs: sequences together or one at a time."""

    def __init__(self, model: CausalModel, *, batches: bool) -> None:
        self.model, self._batches = model, batches
        self.cache = model.new_cache(max(BATCHES) * 2 + LONG_TOKENS // 128)

    def prefill(self, tokens: Sequence[int], *, cuts: bool) -> float:
        """Seconds of one prompt in chunks; cuts: late layers run on the last window only."""
        with self.cache.allocate(self.model.kv_layout.num_pages(len(tokens))) as lease:
            began = time.perf_counter()
            for start in range(0, len(tokens), CHUNK_TOKENS):
                part = tokens[start : start + CHUNK_TOKENS]
                is_last = start + len(part) == len(tokens)
                chunk = _chunk(part, start, lease, wants_logits=is_last, defers_late=cuts)
                self.model.forward([chunk], self.cache)
            return time.perf_counter() - began

    def decode(self, batch: int, num_steps: int) -> float:
        """Seconds of num_steps steps of `batch` sequences behind CONTEXT_TOKENS tokens."""
        prompt = _tokens(CONTEXT_TOKENS)
        leases = [self.cache.allocate(2) for _ in range(batch)]
        for lease in leases:
            self.model.forward([_chunk(prompt, 0, lease, defers_late=True)], self.cache)
        began = time.perf_counter()
        for step in range(num_steps):
            rows = [_chunk([7], CONTEXT_TOKENS + step, lease) for lease in leases]
            for part in [rows] if self._batches else [[row] for row in rows]:
                self.model.forward(part, self.cache)
        took = time.perf_counter() - began
        for lease in leases:
            lease.release()
        return took


def _chunk(
    tokens: Sequence[int],
    start: int,
    lease: PageLease,
    *,
    wants_logits: bool = True,
    defers_late: bool = False,
) -> SequenceChunk:
    return SequenceChunk(
        tokens, start, lease.pages, wants_logits, lease.window, defers_late=defers_late
    )


def _tokens(count: int) -> list[int]:
    return np.random.default_rng(0).integers(2, 4000, count).tolist()


def _median(rounds: int, run: Callable[[], float]) -> float:
    return statistics.median(run() for _ in range(rounds))


def _pair(
    rounds: int, first: Callable[[], float], second: Callable[[], float]
) -> tuple[float, float, float]:
    """(median seconds of the first, of the second, median of second / first), run in turns."""
    took = [(first(), second()) for _ in range(rounds)]
    ratio = statistics.median(b / a for a, b in took)
    return statistics.median(a for a, _ in took), statistics.median(b for _, b in took), ratio


def measure(rounds: int) -> bool:
    """Prints the figures; returns whether all goals are met."""
    with tempfile.TemporaryDirectory() as directory:
        write_random_v41(Path(directory))
        engine = Side(load_model(Path(directory), dtype="bfloat16"), batches=True)
        plain = Side(load_model(Path(directory), dtype="float32"), batches=False)
    for side in (engine, plain):  # compiles kernels, touches memory
        side.prefill(_tokens(SHORT_TOKENS), cuts=True)
        side.decode(2, 2)
    return all([_prefill(engine, rounds), _decode(engine, rounds), _compare(engine, plain, rounds)])


def _prefill(engine: Side, rounds: int) -> bool:
    tokens = _tokens(LONG_TOKENS)
    cut, full, ratio = _pair(
        rounds,
        lambda: engine.prefill(tokens, cuts=True),
        lambda: engine.prefill(tokens, cuts=False),
    )
    emit("model.prefill.tokens_per_s", LONG_TOKENS / cut, "tokens/s", threads=NUM_THREADS)
    emit("model.prefill.without_cut.tokens_per_s", LONG_TOKENS / full, "tokens/s")
    return emit("model.prefill.cut_over_full", ratio, "ratio", goal=CUT_GOAL)


def _decode(engine: Side, rounds: int) -> bool:
    for batch in BATCHES:
        took = _median(rounds, lambda size=batch: engine.decode(size, NUM_STEPS))
        emit("model.decode.tokens_per_s", batch * NUM_STEPS / took, "tokens/s", batch=batch)
    return True


def _compare(engine: Side, plain: Side, rounds: int) -> bool:
    tokens = _tokens(SHORT_TOKENS)
    _, _, ratio = _pair(
        rounds,
        lambda: engine.prefill(tokens, cuts=False),
        lambda: plain.prefill(tokens, cuts=False),
    )
    is_met = emit("model.prefill.over_plain", ratio, "ratio", goal=PLAIN_GOAL)
    _, _, ratio = _pair(
        rounds,
        lambda: engine.decode(COMPARED_BATCH, NUM_STEPS) / NUM_STEPS,
        lambda: plain.decode(COMPARED_BATCH, 1),
    )
    return emit("model.decode.over_plain", ratio, "ratio", goal=PLAIN_GOAL) and is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    raise SystemExit(0 if measure(parser.parse_args().rounds) else 1)


if __name__ == "__main__":
    main()
