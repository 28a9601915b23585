"""Clients that leave at random times, in every phase of an answer: nothing may stay held."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.cancelled import Phase

from rorqual_cli.chaos.arena import Arena
from rorqual_cli.chaos.plan import Fault, Kind
from rorqual_cli.idle import Held, num_held
from rorqual_cli.report import Reporter

SETTLE_S = 90.0
"""More than recipe keeps an answer that nobody asks after."""
GOAL_S = 1.0
"""From the last client's end until nobody holds anything."""
LONGEST_SHARE = 1.3
"""Of an answer's usual time: some are over before their client leaves."""
_DRAINS = (Fault(Kind.DRAIN, "decode-1"), Fault(Kind.DRAIN, "decode-2"))
_PAUSE_S = 3.0
"""Between two drains."""
_HURRY_S = 1.0
"""When a drain begins, all clients leave within this time: their answers may just move."""
_TELL_EACH = 100


@dataclass(frozen=True, slots=True)
class Cancelled:
    """completed: answered before their client left. by_phase: where the others were. settled_s:
    from the last one's end until nobody held anything. held: by whom, after all."""

    requests: int
    completed: int
    by_phase: Mapping[str, int]
    held: Mapping[str, Held]
    settled_s: float

    @property
    def is_good(self) -> bool:
        """Every phase was hit, and all of it let go in time."""
        is_whole = all(self.by_phase.get(phase) for phase in Phase)
        return is_whole and not self.held and self.settled_s <= GOAL_S

    def to_json(self) -> dict[str, Any]:
        """For the one line of output."""
        return {
            "requests": self.requests,
            "completed": self.completed,
            "by_phase": dict(self.by_phase),
            "leaked": num_held(self.held),
            "settled_s": round(self.settled_s, 2),
            "settled_goal_s": GOAL_S,
        }


@dataclass
class PhaseCounts:
    """Where requests were when they were given up, as all instances report it."""

    _last: dict[tuple[str, int], Mapping[str, int]] = field(default_factory=dict)

    def hear(self, report: LoadReport) -> None:
        """Counts since an instance's start; another incarnation begins anew."""
        self._last[report.instance_id, report.incarnation] = dict(report.cancelled_total)

    @property
    def by_phase(self) -> dict[str, int]:
        """In the order of a request's life."""
        total: Counter[str] = Counter()
        for counts in self._last.values():
            total.update(counts)
        return {phase.value: total[phase] for phase in Phase}


class Crowd:
    """Clients of whom each asks once, and leaves after a random part of the usual time."""

    def __init__(self, arena: Arena, rng: random.Random, num_clients: int) -> None:
        self._arena = arena
        self._rng = rng
        self._places = asyncio.Semaphore(num_clients)
        self._asking: set[asyncio.Task[bool]] = set()
        self.num_done = self.num_completed = 0

    async def ask(self, count: int, report: Reporter) -> None:
        """So many requests, as many at once as there are places."""
        await asyncio.gather(*(self._ask_one(*self._draw(), report) for _ in range(count)))

    def hurry(self) -> None:
        """All that wait leave soon."""
        for task in self._asking:
            delay_s = self._rng.uniform(0.0, _HURRY_S)
            asyncio.get_running_loop().call_later(delay_s, task.cancel)

    async def _ask_one(self, number: int, patience_s: float, report: Reporter) -> None:
        async with self._places:
            question = self._arena.questions[number]
            task = asyncio.create_task(self._arena.client.ask_for(question, patience_s))
            self._asking.add(task)
            await asyncio.wait({task})
            self._asking.discard(task)
        self.num_done += 1
        self.num_completed += not task.cancelled() and task.result()
        if self.num_done % _TELL_EACH == 0:
            report.say(f"{time.strftime('%H:%M:%S')} {self.num_done} asked")

    def _draw(self) -> tuple[int, float]:
        number = self._rng.randrange(len(self._arena.questions))
        return number, self._rng.uniform(0.0, LONGEST_SHARE) * self._arena.usual_s[number]


async def cancel_many(
    arena: Arena, count: int, *, num_clients: int, seed: int, report: Reporter
) -> Cancelled:
    """`count` requests, so many at once, while decode instances drain and come back in turn; the
    last of them are asked of a calm fleet.

    Raises: TimeoutError when an instance does not come back; Refused, or what httpx raises, when a
    request fails.
    """
    crowd, phases = Crowd(arena, random.Random(seed), num_clients), PhaseCounts()
    num_calm = min(2 * num_clients, count)
    async with arena.watch.hearing(phases.hear):
        asking = asyncio.create_task(crowd.ask(count - num_calm, report))
        await _drain_while(asking, arena, crowd, _DRAINS, report)
        await crowd.ask(num_calm, report)
        end_s = time.monotonic()
        held, settled_s = await arena.watch.settle(SETTLE_S)
    waited_s = max(0.0, settled_s - end_s)
    return Cancelled(count, crowd.num_completed, phases.by_phase, held, waited_s)


async def _drain_while(
    asking: asyncio.Task[None],
    arena: Arena,
    crowd: Crowd,
    drains: Sequence[Fault],
    report: Reporter,
) -> None:
    """One after the other has its answers moved away, for as long as there are clients."""
    for drain in itertools.cycle(drains):
        await asyncio.wait({asking}, timeout=_PAUSE_S)
        if asking.done():
            break
        report.say(f"{time.strftime('%H:%M:%S')} {drain.name}")
        crowd.hurry()
        await arena.injector.strike(drain)
    await asking
