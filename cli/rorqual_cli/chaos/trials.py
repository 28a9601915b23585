"""A fleet under load and faults, from the first strike to the verdict."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rorqual_cli.chaos.arena import Arena
from rorqual_cli.chaos.injector import Struck
from rorqual_cli.chaos.load import Load
from rorqual_cli.chaos.memory import Sample
from rorqual_cli.chaos.plan import Fault, Strike
from rorqual_cli.chaos.table import Row
from rorqual_cli.chaos.verdict import Asked, Verdict, Window, judge
from rorqual_cli.idle import describe, num_held
from rorqual_cli.problems import CliError
from rorqual_cli.report import Reporter

SETTLE_S = 90.0
"""More than recipe keeps an answer that nobody asks after."""
_SWING_TIMEOUT_S = 120.0
_CALM_S = 3.0
"""Of load behind a single fault, for what it did to show."""
_SAMPLE_S = 5.0


async def one_fault(arena: Arena, fault: Fault, *, num_clients: int, report: Reporter) -> Row:
    """It strikes in the midst of load. Raises: CliError when the fleet does not recover."""
    load = arena.load(num_clients)
    async with load.running():
        async with asyncio.timeout(_SWING_TIMEOUT_S):
            await load.in_full_swing.wait()
        struck = await _strike(arena, fault, report)
        await asyncio.sleep(_CALM_S)
    window = Window(struck.at_s, time.monotonic())
    verdict = await _judge(arena, load, [window], report)
    return Row(fault, verdict, struck.back_s, os.getloadavg()[0])


@dataclass(frozen=True, slots=True)
class Storm:
    """Random faults: so many, what they did, and the memory of every process meanwhile."""

    num_faults: int
    verdict: Verdict
    samples: Sequence[Sample]


async def random_faults(
    arena: Arena, strikes: Sequence[Strike], *, seconds: float, num_clients: int, report: Reporter
) -> Storm:
    """They strike one after the other, those whose turn comes within the time: one waits until the
    fleet is whole again behind the one before.

    Raises: CliError when the fleet does not recover.
    """
    load = arena.load(num_clients)
    struck: list[Struck] = []
    samples: list[Sample] = []
    begin_s = time.monotonic()
    async with load.running(), _sampling(arena, samples, begin_s):
        for strike in strikes:
            if time.monotonic() > begin_s + seconds:
                break
            await asyncio.sleep(max(0.0, begin_s + strike.at_s - time.monotonic()))
            struck.append(await _strike(arena, strike.fault, report))
            num_lost = sum(asked.answer is None for asked in load.asked)
            report.say(f"  {len(load.asked)} asked, {num_lost} lost")
        await asyncio.sleep(max(0.0, begin_s + seconds - time.monotonic()))
    ends_s = [*(each.at_s for each in struck[1:]), time.monotonic()]
    windows = [Window(each.at_s, end_s) for each, end_s in zip(struck, ends_s, strict=False)]
    return Storm(len(struck), await _judge(arena, load, windows, report), samples)


@asynccontextmanager
async def _sampling(arena: Arena, samples: list[Sample], begin_s: float) -> AsyncIterator[None]:
    """Memory of every process, now and then."""

    async def sample_on() -> None:
        while True:
            samples.extend(arena.watch.memory(time.monotonic() - begin_s))
            await asyncio.sleep(_SAMPLE_S)

    task = asyncio.create_task(sample_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _strike(arena: Arena, fault: Fault, report: Reporter) -> Struck:
    report.say(f"{time.strftime('%H:%M:%S')} {fault.name}")
    try:
        return await arena.injector.strike(fault)
    except TimeoutError as error:
        raise CliError(f"{fault.name}: {error}") from None


async def _judge(arena: Arena, load: Load, windows: Sequence[Window], report: Reporter) -> Verdict:
    held, _ = await arena.watch.settle(SETTLE_S)
    for name, counts in held.items():
        report.say(f"  {name} still holds {describe(counts)}")
    for each in load.asked:
        _tell(arena, each, report)
    return judge(load.asked, arena.expected, windows, num_leaked=num_held(held))


def _tell(arena: Arena, asked: Asked, report: Reporter) -> None:
    """What went wrong with a request, if anything."""
    kind = f"{arena.questions[asked.question].kind}, {' '.join(asked.request_ids)}"
    if asked.answer is None:
        report.say(f"  lost ({kind}): {asked.failure}")
    elif asked.answer != (expected := arena.expected[asked.question]):
        report.say(f"  wrong ({kind}): {asked.answer} instead of {expected}")
