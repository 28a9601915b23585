"""The live prefill balancer: three processes, prompts of 1 token to 6K, one process slowed to a
third by stopping it two thirds of the time. Nobody may be idle while work waits, and short prompts
behind long ones may take at most three times as long as alone.

Everything runs on this machine, so the slow-down by each other is part of the figure. Engines
compute with one thread each: one that had all cores when alone, and shares them under load, would
show that sharing and not the balancer. Alone means without long prompts: the slowed process is as
slow then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from rorqual_runtime.span_files import read_spans
from rorqual_sim.decisions import replay_decisions

from bench.http_load import Endpoint, StreamTiming, completion_body, stream_once
from bench.idle_time import idle_while_waiting
from bench.report import at_most, emit
from tests.support.fleet import RunningFleet, running_fleet

MODEL = "smollm2-135m-instruct"
INSTANCES = ("prefill-1", "prefill-2", "prefill-3")
SLOWED = INSTANCES[-1]
SHORT_TOKENS, LONG_TOKENS = (1, 512), (2048, 6144)
NUM_LONG_AT_ONCE = 5
"""More than there are instances, so that some always wait."""
STOP_S, RUN_S = 0.020, 0.010
GRACE_S = 0.050
"""From submitting to an instance: router, queue and messages on a busy machine."""
SETTINGS = {"RORQUAL_DECISION_LOG": "1", "RORQUAL_PREFILL_NUM_THREADS": "1"}
IDLE_GOAL, TTFT_GOAL = 0.01, 3.0


class Prompts:
    """Token ids that were never sent before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def body(self, bounds: tuple[int, int]) -> dict[str, object]:
        """A completion of one token; its length is log-uniform within the bounds."""
        low, high = bounds
        num_tokens = round(low * (high / low) ** self._random.random())
        ids = [self._random.randrange(100, 40_000) for _ in range(num_tokens)]
        return completion_body(MODEL, ids, max_tokens=1)


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """The process runs a third of the time."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOP_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(RUN_S)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


async def alone(endpoint: Endpoint, prompts: Prompts, num: int) -> list[StreamTiming]:
    """Short prompts one after the other."""
    return [await stream_once(endpoint, prompts.body(SHORT_TOKENS)) for _ in range(num)]


async def behind_long(
    endpoint: Endpoint, prompts: Prompts, num: int, gap_s: float
) -> tuple[list[StreamTiming], int]:
    """Short prompts at random times while long ones queue; and how many long ones were served."""
    num_long = 0

    async def keep_one_long() -> None:
        nonlocal num_long
        while True:
            await stream_once(endpoint, prompts.body(LONG_TOKENS))
            num_long += 1

    longs = [asyncio.create_task(keep_one_long()) for _ in range(NUM_LONG_AT_ONCE)]
    await asyncio.sleep(2.0)
    arrivals = random.Random(7)
    shorts = []
    for _ in range(num):
        await asyncio.sleep(arrivals.expovariate(1.0 / gap_s))
        body = prompts.body(SHORT_TOKENS)
        shorts.append(asyncio.create_task(stream_once(endpoint, body)))
    timings = await asyncio.gather(*shorts)
    for long in longs:
        long.cancel()
    await asyncio.gather(*longs, return_exceptions=True)
    return list(timings), num_long


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, min(len(values) - 1, round(share * len(values)) - 1))]


def report(before: list[StreamTiming], after: list[StreamTiming], num_long: int) -> bool:
    """Short prompts alone against behind long ones."""
    unloaded, loaded = ([t.ttft_s for t in timings] for timings in (before, after))
    for name, values in (("alone", unloaded), ("behind_long", loaded)):
        emit(f"balance_short_ttft_p50_{name}", statistics.median(values), "s", num=len(values))
        emit(f"balance_short_ttft_p99_{name}", percentile(values, 0.99), "s")
    ratio = percentile(loaded, 0.99) / percentile(unloaded, 0.99)
    return emit(
        "balance_short_ttft_p99_ratio",
        ratio,
        "ratio",
        goal=TTFT_GOAL,
        passes=at_most,
        num_long=num_long,
    )


def report_idle(fleet: RunningFleet, began_unix_s: float) -> bool:
    """Of the loaded part, by its spans."""
    time.sleep(3.0)  # spans are written about once a second
    spans = (
        span
        for span in read_spans(fleet.home / "traces", '"prefill')
        if span.start_unix_ns / 1e9 >= began_unix_s
    )
    found = idle_while_waiting(spans, INSTANCES, GRACE_S)
    emit("balance_work_waited", found.waiting_s, "s")
    emit("balance_longest_idle_while_work_waits", found.longest_s, "s")
    share = found.idle_s / max(found.waiting_s, 1e-9)
    return emit(
        "balance_idle_while_work_waits", share, "share", goal=IDLE_GOAL, passes=at_most
    ) and (found.waiting_s > 0)


def report_decisions(fleet: RunningFleet) -> bool:
    """Everything that router and prefill logged, made again."""
    texts = (text for name in fleet.pids for text in fleet.log(name).splitlines())
    found = replay_decisions(json.loads(text) for text in texts if '"kind"' in text)
    return emit(
        "balance_decisions_that_differ_when_replayed",
        len(found.differences),
        "decisions",
        goal=0,
        passes=at_most,
        replayed=dict(found.counts),
    ) and bool(found.counts["pull"])


def main() -> int:
    """Returns: 0 when every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shorts", type=int, default=100, help="short prompts in each part")
    parser.add_argument("--gap", type=float, default=0.5, help="mean seconds between them")
    options = parser.parse_args()
    print(f"cpus {os.cpu_count()}, load {os.getloadavg()}", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="rorqual-bench-") as home,
        running_fleet(Path(home), patient=False, prefill=3, env=SETTINGS) as fleet,
    ):
        parts = urlsplit(fleet.base_url)
        endpoint = Endpoint(str(parts.hostname), int(parts.port or 0))
        prompts = Prompts(seed=1)
        asyncio.run(alone(endpoint, prompts, 10))  # warm
        with slowed(fleet.pids[SLOWED]):
            before = asyncio.run(alone(endpoint, prompts, options.shorts))
            began_unix_s = time.time()
            after, num_long = asyncio.run(
                behind_long(endpoint, prompts, options.shorts, options.gap)
            )
        met = [
            report(before, after, num_long),
            report_idle(fleet, began_unix_s),
            report_decisions(fleet),
        ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
