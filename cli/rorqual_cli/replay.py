"""`rorqual replay`: a trace through a simulated fleet; numbers, and a page with plots."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rorqual_sim.replay.fleet import Replay, ReplayResult
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.plan import money
from rorqual_sim.replay.report import html_report, summary
from rorqual_sim.traces import Trace, TraceError, read_trace

from rorqual_cli.problems import CliError
from rorqual_cli.replay_inputs import read_prices, replay_options


def run_replay(options: argparse.Namespace) -> int:
    """Replay, then write what was asked for.

    Raises: CliError for a trace or options that can't be used.
    """
    prices = read_prices(options)
    trace = _read(options.trace)
    try:
        wanted = replay_options(options)
        result = _run(trace, wanted)
        values = summary(result, wanted, trace.name)
    except ValueError as error:
        raise CliError(str(error)) from None
    if prices is not None:
        values["money"] = money(values, prices)
    text = json.dumps(values, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)
    if options.html:
        card_hour = prices.card_hour if prices else 0.0
        options.html.write_text(html_report(result, values, wanted, card_hour))
    return 0


def _read(path: Path) -> Trace:
    try:
        return read_trace(path)
    except TraceError as error:
        raise CliError(str(error), "see `rorqual replay --help` for the formats") from None


def _run(trace: Trace, options: ReplayOptions) -> ReplayResult:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("requests done", total=len(trace))

        def show(num_done: int, num_known: int) -> None:
            bar.update(task, completed=num_done, total=num_known)

        return Replay(trace, options).run(show if sys.stderr.isatty() else None)
