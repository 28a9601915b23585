"""Experts in balance: what deciding costs the engine a layer, what a group of two processes costs a
step, how long a move keeps a step waiting, and what balance it brings.

Splits are timed at the sizes of a large deployment, on tables that fit the load; other ranks'
counts are made up. The group is the small model of the tests, whose layers take no longer than the
messages between its ranks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rorqual_engine.device import configure_threads

configure_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rorqual_engine.batch import SequenceChunk  # noqa: E402
from rorqual_engine.expert_balance import BalanceParams, ExpertWatch  # noqa: E402
from rorqual_engine.expert_ranks import ExpertRanks, LeadingModel, open_model  # noqa: E402
from rorqual_engine.models import CausalModel, load_model  # noqa: E402
from rorqual_engine.parallel import ExpertPlacement  # noqa: E402
from rorqual_engine.parallel.load import LayerCounter  # noqa: E402
from rorqual_engine.parallel.split import RecentSplit, RowSplit, StepSplit  # noqa: E402
from rorqual_engine.prepare.random_v41 import write_random_v41  # noqa: E402
from rorqual_policy.expert_placement import place_ring  # noqa: E402

from bench.report import at_most, emit  # noqa: E402

NUM_EXPERTS, TOP_K = 384, 8
SHAPES = {"decode_64_ranks": (64, 1, 128), "prefill_8_ranks": (8, 4, 16_384)}
"""(ranks, redundant experts on each, rows of this rank)"""
BATCH, CONTEXT_TOKENS = 16, 60
MOST_CHANGES = 8


class Others:
    """Ranks whose counts are known: an exchange for splits alone."""

    def __init__(self, counts: torch.Tensor) -> None:
        self._counts = counts

    def share(self, values: torch.Tensor) -> torch.Tensor:
        self._counts[0] = values
        return self._counts


def bench_splits(rounds: int) -> Iterator[tuple[str, float]]:
    """(name, us a layer)"""
    random = np.random.default_rng(1)
    popular = random.lognormal(0, 0.8, NUM_EXPERTS)
    popular /= popular.sum()
    for name, (ranks, redundant, rows) in SHAPES.items():
        table = ExpertPlacement(NUM_EXPERTS, place_ring(popular.tolist(), ranks, redundant))
        counts = torch.from_numpy(random.multinomial(rows * TOP_K, popular, ranks))
        drawn = random.choice(NUM_EXPERTS, (rows, TOP_K), p=popular)
        experts = torch.from_numpy(drawn.astype(np.int32))
        splits: dict[str, RowSplit] = {
            "counts": StepSplit(table, 0, Others(counts)),  # type: ignore[arg-type]
            "recent": RecentSplit(table, 0),
        }
        for by, split in splits.items():
            counter = LayerCounter(NUM_EXPERTS)
            took_s = _cpu_s(lambda: split.destinations(experts, counter), 20 * rounds)  # noqa: B023
            yield f"expert_engine_split_{name}_{by}", took_s * 1e6


class Generating:
    """Steps of BATCH sequences, one token each."""

    def __init__(self, model: CausalModel) -> None:
        self.model, self.cache = model, model.new_cache(BATCH)
        self._leases = [self.cache.allocate(1) for _ in range(BATCH)]
        for number, lease in enumerate(self._leases):
            prompt = _tokens(number, CONTEXT_TOKENS)
            chunk = SequenceChunk(prompt, 0, lease.pages, True, lease.window, defers_late=True)
            model.forward([chunk], self.cache)

    def step(self) -> None:
        chunks = [
            SequenceChunk([7 + number % 3], CONTEXT_TOKENS, lease.pages, True, lease.window)
            for number, lease in enumerate(self._leases)
        ]
        self.model.forward(chunks, self.cache)


@contextmanager
def group(directory: Path) -> Iterator[LeadingModel]:
    """Two ranks with one redundant expert each; nobody moves experts but this bench."""
    ranks = ExpertRanks(2, num_redundant=1, balance=BalanceParams(interval_s=0))
    with open_model(directory, ranks=ranks) as model:
        assert isinstance(model, LeadingModel)
        yield model


def bench_group(directory: Path, rounds: int) -> None:
    with torch.inference_mode(), group(directory) as shared:
        alone, together = Generating(load_model(directory)), Generating(shared)
        num_layers = len(shared.expert_tables())
        extra_s, ratios = [], []
        for _ in range(rounds):
            one, two = (_median_s(side.step, 8) for side in (alone, together))
            extra_s.append((two - one) / num_layers)
            ratios.append(two / one)
        emit("expert_group_extra", statistics.median(extra_s) * 1e6, "us a layer", rows=BATCH)
        emit("expert_group_step_over_one_process", statistics.median(ratios), "x")
        bench_moves(shared, together, rounds)


def bench_moves(model: LeadingModel, generating: Generating, rounds: int) -> None:
    """What a step waits before which a layer moves."""
    waited_s = []
    for number in range(4 * rounds):
        layer = number % len(model.expert_tables())
        model.plan_tables({layer: _swapped(model.expert_tables()[layer])})
        generating.step()
        waited_s.append(model.last_move_s)
    assert sum(load.num_moved for load in model.layer_loads()) == MOST_CHANGES * len(waited_s)
    emit("expert_move_wait", statistics.median(waited_s) * 1e3, "ms a layer", slots=MOST_CHANGES)


def _swapped(table: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Half of MOST_CHANGES experts of either rank change sides."""
    first, second = (list(held) for held in table)
    pairs = zip(
        [slot for slot, expert in enumerate(first) if expert not in second],
        [slot for slot, expert in enumerate(second) if expert not in first],
        strict=False,
    )
    for mine, theirs in list(pairs)[: MOST_CHANGES // 2]:
        first[mine], second[theirs] = second[theirs], first[mine]
    return tuple(first), tuple(second)


def bench_balance(directory: Path) -> None:
    """The mean over layers, from an even table on, as the counters of the engine see it."""
    ranks = ExpertRanks(2, balance=BalanceParams(interval_s=0))
    with torch.inference_mode(), open_model(directory, ranks=ranks) as model:
        assert isinstance(model, LeadingModel)
        generating = Generating(model)
        watch = ExpertWatch(model, BalanceParams(max_changes=MOST_CHANGES), model.plan_tables)
        before = _imbalance(watch, generating)
        for _ in range(3):
            _imbalance(watch, generating)
        after = _imbalance(watch, generating)
        moved = sum(load.num_moved for load in model.layer_loads())
    emit("expert_imbalance_even_table", before, "x")
    emit("expert_imbalance_after_4_intervals", after, "x", goal=before, passes=at_most, moved=moved)


def _imbalance(watch: ExpertWatch, generating: Generating) -> float:
    """Of one interval, at the end of which experts move."""
    loads = []
    for _ in range(6):
        for _ in range(12):
            generating.step()
        watch.end_window()
        loads += [load.recent.imbalance for load in generating.model.expert_loads]
    return statistics.mean(loads)


def _tokens(seed: int, count: int) -> Sequence[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 4000, count).tolist()
    return found


def _cpu_s(run: Callable[[], object], times: int) -> float:
    """Of this thread: what else the machine does is not counted."""
    return _median_s(run, times, time.thread_time)


def _median_s(
    run: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    took = []
    for _ in range(times):
        began = clock()
        run()
        took.append(clock() - began)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    for name, value in bench_splits(rounds):
        emit(name, value, "us a layer")
    with tempfile.TemporaryDirectory() as place:
        changes = {"vision_config": None, "dspark_config": None}
        write_random_v41(Path(place), changes=changes)
        bench_group(Path(place), rounds)
        bench_balance(Path(place))


if __name__ == "__main__":
    main()
