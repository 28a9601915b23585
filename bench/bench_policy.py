"""`make bench-policy TRACES=dir`: the acceptance bars of the load balancers, one JSON line each.

Every trace in the folder with block ids is measured; without a folder only what needs none.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
from collections.abc import Hashable, Iterator, MutableMapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from rorqual_sim.traces import TraceError, read_trace

from bench.policy_bars import load
from bench.policy_bars.load import SEED, Load, half_of
from bench.policy_bars.registry import BARS, MODULES, Figure
from bench.report import at_most, emit

_SUFFIXES = (".jsonl", ".gz", ".csv")
LOADS: list[Load] = []
"""Filled before workers are forked: they inherit the traces."""


def main() -> int:
    """Measure; 1 when a bar was missed."""
    options = _options()
    for module in MODULES:
        importlib.import_module(f"bench.policy_bars.{module}")
    LOADS.extend(_read_loads(options))
    tasks = [
        (place, index)
        for place, bar in enumerate(BARS)
        if not options.bars or bar.number in options.bars
        for index in (range(len(LOADS)) if bar.needs_trace else (-1,))
    ]
    tasks.sort(key=lambda task: -BARS[task[0]].minutes)
    context = multiprocessing.get_context("fork")
    met = True
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(
            options.workers, context, initializer=_share, initargs=(manager.dict(),)
        ) as pool,
    ):
        running: dict[Future[list[Figure]], tuple[int, int]] = {
            pool.submit(_measure, *task): task for task in tasks
        }
        for future in as_completed(running):
            met &= _report(*running[future], future.result())
    return 0 if met else 1


def _share(misses: MutableMapping[tuple[Hashable, ...], float]) -> None:
    """In a worker: what others have run is not run again."""
    load.MISSES = misses


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder of traces in the known formats")
    parser.add_argument("--bars", type=int, nargs="*", default=(), help="only these numbers")
    parser.add_argument("--half", choices=("first", "second"), help="of each trace: a held-out run")
    parser.add_argument("--seed", type=int, default=SEED, help="of arrivals and lengths")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    return parser.parse_args()


def _read_loads(options: argparse.Namespace) -> Iterator[Load]:
    folder: Path | None = options.traces
    if folder is None:
        print("no TRACES=dir given: bars that need a trace are skipped", file=sys.stderr)
        return
    for path in sorted(folder.iterdir()):
        if path.suffix not in _SUFFIXES:
            continue
        try:
            trace = read_trace(path)
        except TraceError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        if trace.has_blocks and options.half:
            trace = half_of(trace, is_second=options.half == "second")
        if trace.has_blocks:
            yield Load(trace, options.seed)
        else:
            print(f"skipped: {path.name} tells lengths only, no prefixes", file=sys.stderr)


def _measure(place: int, index: int) -> list[Figure]:
    return list(BARS[place].measure(LOADS[index] if index >= 0 else None))


def _report(place: int, index: int, figures: list[Figure]) -> bool:
    prefix = f"bar{BARS[place].number}_"
    suffix = f"_{LOADS[index].trace.name}" if index >= 0 else ""
    met = True
    for figure in figures:
        passes = at_most if figure.is_upper else None
        extra = {"note": figure.note} if figure.note else {}
        name = prefix + figure.name + suffix
        met &= emit(
            name, float(figure.value), figure.unit, goal=figure.goal, passes=passes, **extra
        )
    return met


if __name__ == "__main__":
    sys.exit(main())
