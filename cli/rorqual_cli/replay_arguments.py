"""Arguments of `rorqual replay` and `rorqual plan`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from rorqual_sim.replay.options import POLICIES, Failure, ReplayOptions, Role

_TRACE_HELP = "Mooncake or session JSONL, Azure CSV, or our own"


def add_replay(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[..., int]
) -> None:
    """Declare the command."""
    replay = commands.add_parser("replay", help="a trace through a simulated fleet")
    replay.add_argument("trace", type=Path, help=_TRACE_HELP)
    for name, count, help_text in (
        ("prefill", 2, "prefill groups"),
        ("decode", 2, "decode instances"),
        ("max-prefill", 0, "let scaling add prefill groups up to N; 0 = do not scale"),
        ("max-decode", 0, "the same for decode"),
    ):
        replay.add_argument(f"--{name}", type=int, default=count, metavar="N", help=help_text)
    replay.add_argument(
        "--fail", type=_failure, action="append", default=[], metavar="ROLE:N@S+D",
        help="instance N is gone at S seconds, another is there D seconds later",
    )  # fmt: skip
    _add_shared(replay)
    replay.add_argument("--json", type=Path, metavar="FILE", help="numbers; default: printed")
    replay.add_argument("--html", type=Path, metavar="FILE", help="a page with plots")
    replay.set_defaults(run=run)


def add_plan(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[..., int]
) -> None:
    """Declare `rorqual plan`."""
    plan = commands.add_parser("plan", help="the smallest fleet that meets its objectives")
    plan.add_argument("--trace", type=Path, required=True, help=_TRACE_HELP)
    plan.add_argument("--slo", required=True, help="e.g. ttft_p99=1s,tpot=20ms")
    plan.add_argument("--max-instances", type=int, default=64, metavar="N", help="of either kind")
    _add_shared(plan)
    plan.set_defaults(run=run, prefill=1, decode=1, max_prefill=0, max_decode=0, fail=[])


def _add_shared(command: argparse.ArgumentParser) -> None:
    defaults = ReplayOptions()
    command.add_argument(
        "--policy", choices=POLICIES, default=defaults.policy,
        help="rorqual, deepseek, or what another system does",
    )  # fmt: skip
    command.add_argument(
        "--rank-cache", type=float, metavar="X",
        help="seconds that ranks keep pages of their own instead of sharing the store",
    )  # fmt: skip
    command.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="step times as `rorqual calibrate` wrote them; default: an assumed card",
    )  # fmt: skip
    command.add_argument(
        "--prices", type=Path, metavar="FILE", help="JSON: what cards cost, tokens bring"
    )
    command.add_argument("--gpu", default="h200", help="card to look up in the prices")
    command.add_argument(
        "--ranks", type=int, default=defaults.ranks_per_group, metavar="N", help="cards of a group"
    )
    command.add_argument(
        "--step-tokens", type=int, default=defaults.step_tokens, metavar="N",
        help="most tokens of a card in one prefill step",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of session starts")
    for name, value, help_text in (
        ("speed", 1.0, "recorded time passes this much faster"),
        ("spread", defaults.spread_s, "seconds within which recorded sessions begin"),
        ("limit", math.inf, "leave out what comes later than this many seconds"),
        ("start-up", defaults.start_up_s, "seconds until a new instance works"),
        ("step-limit", defaults.step_limit_s, "seconds of the longest prefill step"),
        ("store-lifetime", defaults.store_lifetime_s, "seconds that stored pages live"),
        ("window-hold", defaults.window_hold_s, "seconds that window states are kept"),
        ("fetch-gib-per-s", defaults.fetch_bytes_per_s / 2**30, "a group's link to the store"),
    ):
        command.add_argument(f"--{name}", type=float, default=value, metavar="X", help=help_text)
    command.add_argument("--closed-loop", action="store_true", help="sessions wait for answers")


def _failure(text: str) -> Failure:
    """`decode:1@600+60`: decode instance 1 at 600 s, back after 60 s."""
    try:
        role, _, rest = text.partition(":")
        number, _, times = rest.partition("@")
        at_s, _, down_s = times.partition("+")
        return Failure(float(at_s), Role(role), int(number), float(down_s or 60.0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like decode:1@600+60") from None
