"""`make bench-elastic`: one prefill and one decode instance become four of each under load and one
again without it, all by the scaler's local driver, and every request is answered as it would be by
a calm fleet.

The scaler's windows are compressed by COMPRESSION, so "one reversal in five minutes" is one in
300 s / COMPRESSION here. Everything runs on this machine: more instances make nothing quicker.
What is decided, and how far the load is, goes to standard error as it happens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.prompts import distinct_prompts
from bench.report import at_most, emit
from tests.support.fleet import RunningFleet, running_fleet

MODEL = "smollm2-135m-instruct"
MOST = 4
SCALED = ("prefill", "decode")
COMPRESSION = 20.0
FIVE_MINUTES_S = 300.0
PROMPT_WORDS, NEW_TOKENS, LONG_NEW_TOKENS = 150, 96, 600
LONG_PROMPT_WORDS, FEW_TOKENS = 600, 1
LEVELS = ((1, 0, 10.0), (24, 10, 90.0), (1, 0, 75.0))
"""Requests under way at a time, long prompts with short answers beside them, and for how long. What
decode is slow with, prefill gets late: only the latter ask as much of prefill on any machine."""
NUM_LONG = 3
"""Long answers that are under way all the time: what scale-down has to move."""
NUM_CHECKED, NUM_LONG_CHECKED, CHECKED_AT_ONCE = 16, 4, 4
REQUEST_TIMEOUT_S = 300.0
SETTLE_S = 150.0
TELL_EACH_S = 10.0
ENV = {
    "RORQUAL_DECODE_MAX_RUNNING": "8",
    "RORQUAL_DECODE_DRAIN_GRACE_S": "1",
    "RORQUAL_SCALER_INTERVAL_S": "0.5",
    "RORQUAL_SCALER_WINDOW_S": "4",
    "RORQUAL_SCALER_UP_AFTER_S": "1",
    "RORQUAL_SCALER_DOWN_AFTER_S": f"{FIVE_MINUTES_S / COMPRESSION:g}",
    "RORQUAL_SCALER_DOWN_PAUSE_S": "3",
    "RORQUAL_SCALER_BACKLOG_CLEAR_S": "2",
    "RORQUAL_SCALER_SILENT_S": "10",
}


@dataclass
class Watched:
    """Decisions as the console shows them. began_s: what times on standard error count from."""

    began_s: float = field(default_factory=time.monotonic)

    most_running: Counter[str] = field(default_factory=Counter)
    running: Counter[str] = field(default_factory=Counter)
    num_reversals: Counter[str] = field(default_factory=Counter)
    moved: dict[str, int] = field(default_factory=dict)
    """Generations that others took over, by decode instance."""
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while one instance of each is what there is."""
    _directions: dict[str, int] = field(default_factory=dict)

    async def watch(self, client: httpx.AsyncClient) -> None:
        """Read the console's list of decisions for ever."""
        seen = -1
        while True:
            with contextlib.suppress(httpx.HTTPError):
                fleet = (await client.get("/console-api/fleet")).json()
                self.note_moves(fleet["instances"])
                for decision in reversed(fleet["decisions"]):
                    if int(decision["seq"]) > seen:
                        seen = int(decision["seq"])
                        self.on_decision(decision)
            await asyncio.sleep(0.3)

    def note_moves(self, instances: list[dict[str, Any]]) -> None:
        for report in instances:
            if report["service"] == "decode":
                num = int(report["decode"]["moved_generations_total"])
                self.moved[report["instance_id"]] = num

    def on_decision(self, decision: dict[str, Any]) -> None:
        for target in decision["targets"]:
            service, num_running = target["service"], target["num_running"]
            self.running[service] = num_running
            self.most_running[service] = max(self.most_running[service], num_running)
            if target["num_change"]:
                self._note(service, target["num_change"], target["reason"])
        if all(self.running[service] == 1 for service in SCALED):
            self.is_back.set()
        else:
            self.is_back.clear()

    def _note(self, service: str, change: int, reason: str) -> None:
        tell(self.began_s, f"{service} {change:+d}: {reason}")
        direction = 1 if change > 0 else -1
        self.num_reversals[service] += self._directions.get(service) == -direction
        self._directions[service] = direction


@dataclass
class Answers:
    """What clients got."""

    texts: dict[str, str] = field(default_factory=dict)
    """By prompt."""
    problems: list[str] = field(default_factory=list)


class Load:
    """Clients that ask one new prompt after the other."""

    def __init__(self, client: httpx.AsyncClient, seed: int, began_s: float) -> None:
        self._client = client
        self._began_s = began_s
        self._prompts = iter(distinct_prompts(2000, num_words=PROMPT_WORDS, seed=seed))
        long_prompts = distinct_prompts(2000, num_words=LONG_PROMPT_WORDS, seed=seed + 1)
        self._long_prompts = iter(long_prompts)
        self.answers = Answers()
        self.long_answers = Answers()
        self.short_answers = Answers()
        self._under_way: set[asyncio.Task[None]] = set()
        self._reading: set[asyncio.Task[None]] = set()
        """Those with long prompts."""

    async def run(self, levels: tuple[tuple[int, int, float], ...]) -> None:
        """All levels one after the other; everything asked for is waited for at the end."""
        long_ones = [asyncio.create_task(self._keep_long()) for _ in range(NUM_LONG)]
        telling = asyncio.create_task(self._tell_for_ever())
        for level, num_prompts, length_s in levels:
            beside = f"{NUM_LONG} long ones, {num_prompts} long prompts"
            tell(self._began_s, f"{level} at a time, {beside}, for {length_s:g} s")
            end_s = time.monotonic() + length_s
            while time.monotonic() < end_s:
                self._fill_up(level, num_prompts)
                await asyncio.sleep(0.1)
        telling.cancel()
        for task in long_ones:
            task.cancel()
        await asyncio.gather(*long_ones, return_exceptions=True)
        await asyncio.gather(*self._under_way, *self._reading)

    async def _tell_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TELL_EACH_S)
            num_long, num_lost = len(self.long_answers.texts), len(self.problems)
            num_short = len(self.short_answers.texts)
            answered = (
                f"{len(self.answers.texts)}, {num_long} long, {num_short} short ones answered"
            )
            tell(self._began_s, f"{answered}, {num_lost} lost, {len(self._under_way)} under way")

    @property
    def problems(self) -> list[str]:
        """Why answers were lost."""
        kinds = (self.answers, self.long_answers, self.short_answers)
        return [problem for answers in kinds for problem in answers.problems]

    def _fill_up(self, level: int, num_prompts: int) -> None:
        while len(self._under_way) < level + NUM_LONG:
            self._begin(self._under_way, self._ask(self.answers, NEW_TOKENS))
        while len(self._reading) < num_prompts:
            self._begin(self._reading, self._ask(self.short_answers, FEW_TOKENS))

    @staticmethod
    def _begin(tasks: set[asyncio.Task[None]], asking: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(asking)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _keep_long(self) -> None:
        while True:
            asked = asyncio.create_task(self._ask(self.long_answers, LONG_NEW_TOKENS))
            self._under_way.add(asked)  # the last one is waited for, not cut off
            try:
                await asyncio.shield(asked)
            finally:
                asked.add_done_callback(self._under_way.discard)

    async def _ask(self, answers: Answers, num_tokens: int) -> None:
        is_read_only = answers is self.short_answers
        prompt = next(self._long_prompts if is_read_only else self._prompts)
        try:
            answers.texts[prompt] = await ask(self._client, prompt, num_tokens)
        except (httpx.HTTPError, RuntimeError) as error:
            answers.problems.append(f"{type(error).__name__}: {error}")


async def ask(client: httpx.AsyncClient, prompt: str, num_tokens: int) -> str:
    """The greedy answer. Raises: httpx.HTTPError, RuntimeError."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code} {answer.text[:300]}")
    return str(answer.json()["choices"][0]["message"]["content"])


async def num_different(
    client: httpx.AsyncClient, answers: Answers, num_tokens: int, num_checked: int
) -> int:
    """Of some of the answers: how many the calm fleet gives otherwise."""
    chosen = random.Random(1).sample(sorted(answers.texts), min(num_checked, len(answers.texts)))
    places = asyncio.Semaphore(CHECKED_AT_ONCE)

    async def differs(prompt: str) -> bool:
        async with places:
            return answers.texts[prompt] != await ask(client, prompt, num_tokens)

    return sum(await asyncio.gather(*map(differs, chosen)))


def tell(began_s: float, text: str) -> None:
    """On standard error, with the time since the beginning."""
    print(f"{time.monotonic() - began_s:6.1f} s  {text}", file=sys.stderr, flush=True)


async def measure(fleet: RunningFleet, seed: int) -> bool:
    """Up and down once; whether every goal was met."""
    watched = Watched()
    timeout = httpx.Timeout(REQUEST_TIMEOUT_S)
    async with httpx.AsyncClient(base_url=fleet.base_url, timeout=timeout) as client:
        watching = asyncio.create_task(watched.watch(client))
        load = Load(client, seed, watched.began_s)
        await load.run(LEVELS)
        tell(watched.began_s, "the load is over")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(watched.is_back.wait(), SETTLE_S)
        took_s = time.monotonic() - watched.began_s
        watching.cancel()
        wrong = await num_different(client, load.answers, NEW_TOKENS, NUM_CHECKED)
        wrong += await num_different(client, load.long_answers, LONG_NEW_TOKENS, NUM_LONG_CHECKED)
        wrong += await num_different(client, load.short_answers, FEW_TOKENS, NUM_CHECKED)
    return report(watched, load, wrong, took_s)


def report(watched: Watched, load: Load, wrong: int, took_s: float) -> bool:
    """One line a figure; what was lost on standard error."""
    problems = load.problems
    for problem in problems[:5]:
        print(f"lost: {problem}", file=sys.stderr)
    kinds = (load.answers, load.long_answers, load.short_answers)
    num_asked = sum(len(answers.texts) for answers in kinds) + len(problems)
    met = emit("elastic_lost", len(problems), "requests", goal=0, passes=at_most, asked=num_asked)
    met &= emit("elastic_wrong", wrong, "answers", goal=0, passes=at_most)
    met &= emit("elastic_moved", sum(watched.moved.values()), "generations", goal=1)
    for service in SCALED:
        met &= report_counts(service, watched, took_s)
    return met


def report_counts(service: str, watched: Watched, took_s: float) -> bool:
    """One to MOST to one, and how often it turned round."""
    most, last = watched.most_running[service], watched.running[service]
    met = emit(f"elastic_most_{service}", most, "instances", goal=MOST)
    met &= emit(f"elastic_last_{service}", last, "instances", goal=1, passes=at_most)
    reversals = watched.num_reversals[service] * FIVE_MINUTES_S / COMPRESSION / took_s
    unit = "in five minutes of the uncompressed clock"
    return met & emit(
        f"elastic_reversals_{service}",
        reversals,
        unit,
        goal=1,
        passes=at_most,
        took_s=round(took_s),
    )


def main() -> int:
    """Measure; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bounds = dict.fromkeys(SCALED, MOST)
    with (
        tempfile.TemporaryDirectory(prefix="rorqual-") as home,
        running_fleet(Path(home), env=ENV, max_instances=bounds) as fleet,
    ):
        return 0 if asyncio.run(measure(fleet, options.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
