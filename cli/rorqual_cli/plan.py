"""`rorqual plan`: the smallest fleet that meets its objectives on a trace, and what it earns."""

from __future__ import annotations

import argparse
import json
import sys

from rorqual_sim.replay.plan import Plan, money, parse_objectives, plan_fleet
from rorqual_sim.traces import TraceError, read_trace

from rorqual_cli.problems import CliError
from rorqual_cli.replay_inputs import read_prices, replay_options


def run_plan(options: argparse.Namespace) -> int:
    """Print the plan; 1 when no fleet of the allowed size meets the objectives.

    Raises: CliError for a trace, objectives or prices that can't be used.
    """
    try:
        objectives = parse_objectives(options.slo)
        trace = read_trace(options.trace)
        wanted = replay_options(options)
        prices = read_prices(options)
        plan = plan_fleet(trace, wanted, objectives, options.max_instances, _say)
    except (TraceError, ValueError) as error:
        raise CliError(str(error)) from None
    shown = {"plan": _plan_values(plan), **plan.values}
    if prices is not None:
        shown["money"] = money(plan.values, prices)
    print(json.dumps(shown, indent=2))
    return 0 if plan.is_met else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _plan_values(plan: Plan) -> dict[str, object]:
    return {
        "num_prefill": plan.num_prefill,
        "num_decode": plan.num_decode,
        "is_met": plan.is_met,
        "why": plan.why,
        "tried": plan.reasons,
    }
