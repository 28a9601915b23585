"""`rorqual chaos`: random faults under load, each fault of the table by itself, or cancels."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from rorqual_cli.chaos.arena import Arena, open_arena
from rorqual_cli.chaos.cancels import cancel_many
from rorqual_cli.chaos.client import Refused
from rorqual_cli.chaos.memory import growth_of, unmeasured
from rorqual_cli.chaos.plan import Fault, choose_faults, plan_strikes
from rorqual_cli.chaos.table import Row, render_table
from rorqual_cli.chaos.trials import one_fault, random_faults
from rorqual_cli.idle import describe
from rorqual_cli.problems import CliError
from rorqual_cli.report import Reporter

ENDED = 128 + signal.SIGTERM
WARM_S = 300.0
"""When memory is first looked at; sooner in a short run."""


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What `rorqual chaos` can be told. faults: words of their names; none = all.

    table: a page about each fault for itself. watches_memory: no process may grow behind the first
    minutes, and one process of each service has to be there all that time. num_cancels: instead of
    faults, so many clients that leave.
    """

    home: Path
    model: str
    seed: int
    seconds: float
    every_s: float
    num_clients: int
    faults: Sequence[str] = ()
    table: Path | None = None
    watches_memory: bool = False
    num_cancels: int = 0


def run_chaos(options: ChaosOptions, report: Reporter) -> int:
    """Print one JSON line a run; 0 when nothing was lost, wrong or leaked.

    SIGTERM and SIGHUP end it as Ctrl-C does: nothing stays running or mounted. Raises: CliError.
    """
    try:
        faults = choose_faults(options.faults)
    except ValueError as error:
        raise CliError(str(error)) from None
    try:
        return asyncio.run(_run_until_told(options, faults, report))
    except asyncio.CancelledError:
        return ENDED


async def _run_until_told(options: ChaosOptions, faults: Sequence[Fault], report: Reporter) -> int:
    loop = asyncio.get_running_loop()
    run = asyncio.ensure_future(_run(options, faults, report))
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, run.cancel)
    return await run


async def _run(options: ChaosOptions, faults: Sequence[Fault], report: Reporter) -> int:
    async with open_arena(
        options.model,
        options.home,
        report,
        seed=options.seed,
        at_once=options.num_clients,
    ) as arena:
        if options.num_cancels:
            return await _cancels(arena, options, report)
        possible = [fault for fault in faults if not _left_out(arena, fault, report)]
        if not possible:
            raise CliError("none of these faults can be made here")
        if options.table is not None:
            return await _table(arena, options, options.table, possible, report)
        return await _random(arena, options, possible, report)


def _left_out(arena: Arena, fault: Fault, report: Reporter) -> bool:
    obstacle = arena.injector.obstacle(fault)
    if obstacle:
        report.say(f"left out: {fault.name}: {obstacle}")
    return bool(obstacle)


async def _cancels(arena: Arena, options: ChaosOptions, report: Reporter) -> int:
    try:
        cancelled = await cancel_many(
            arena,
            options.num_cancels,
            num_clients=options.num_clients,
            seed=options.seed,
            report=report,
        )
    except (Refused, httpx.HTTPError, TimeoutError) as error:
        raise CliError(f"a cancelled run has failed: {error or type(error).__name__}") from None
    for name, counts in cancelled.held.items():
        report.say(f"  {name} still holds {describe(counts)}")
    _print({"seed": options.seed, **cancelled.to_json(), "load1": round(os.getloadavg()[0], 1)})
    return int(not cancelled.is_good)


async def _table(
    arena: Arena, options: ChaosOptions, path: Path, faults: Sequence[Fault], report: Reporter
) -> int:
    all_good = True
    for fault in faults:
        row = await one_fault(arena, fault, num_clients=options.num_clients, report=report)
        _print({"fault": fault.name, "back_s": round(row.back_s, 1), **row.verdict.to_json()})
        all_good &= row.verdict.is_good
        _add_to_page(path, row, options.num_clients)
    report.say(f"wrote {path}")
    return int(not all_good)


def _add_to_page(path: Path, row: Row, num_clients: int) -> None:
    """Other faults' rows stay."""
    earlier = path.read_text() if path.exists() else ""
    num_cores = os.cpu_count() or 1
    page = render_table([row], num_clients=num_clients, num_cores=num_cores, earlier=earlier)
    path.write_text(page)


async def _random(
    arena: Arena, options: ChaosOptions, faults: Sequence[Fault], report: Reporter
) -> int:
    strikes = plan_strikes(options.seed, options.seconds, faults, every_s=options.every_s)
    storm = await random_faults(
        arena, strikes, seconds=options.seconds, num_clients=options.num_clients, report=report
    )
    line = {"seed": options.seed, "faults": storm.num_faults, **storm.verdict.to_json()}
    line["load1"] = round(os.getloadavg()[0], 1)
    may_have_grown = False
    if options.watches_memory:
        growth = growth_of(storm.samples, warm_s=min(WARM_S, options.seconds / 3))
        for name, own in growth.items():
            if not own.is_within:
                report.say(f"  {name} has grown: {own}")
        line["memory_growth"] = {name: round(own.ratio, 3) for name, own in growth.items()}
        line["memory_unmeasured"] = missing = unmeasured(storm.samples, growth)
        is_steady = all(own.is_within for own in growth.values())
        may_have_grown = not growth or bool(missing) or not is_steady
    _print(line)
    return int(may_have_grown or not storm.verdict.is_good)


def _print(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
