"""Arguments of `rorqual replay`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from rorqual_policy.prefill_policy import PREFILL_POLICIES
from rorqual_sim.replay.options import Failure, ReplayOptions, Role


def add_replay(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], run: Callable[..., int]
) -> None:
    """Declare the command."""
    defaults = ReplayOptions()
    replay = commands.add_parser("replay", help="a trace through a simulated fleet")
    replay.add_argument("trace", type=Path, help="Mooncake or session JSONL, Azure CSV, or our own")
    replay.add_argument("--policy", choices=sorted(PREFILL_POLICIES), default=defaults.policy)
    for name, help_text in (
        ("prefill", "prefill groups"),
        ("decode", "decode instances"),
        ("max-prefill", "let scaling add prefill groups up to N; 0 = do not scale"),
        ("max-decode", "the same for decode"),
        ("ranks", "cards of a prefill group"),
        ("seed", "of session starts"),
    ):
        count = {"ranks": defaults.ranks_per_group, "prefill": 2, "decode": 2}.get(name, 0)
        replay.add_argument(f"--{name}", type=int, default=count, metavar="N", help=help_text)
    for name, value, help_text in (
        ("speed", 1.0, "recorded time passes this much faster"),
        ("spread", defaults.spread_s, "seconds within which recorded sessions begin"),
        ("limit", math.inf, "leave out what comes later than this many seconds"),
        ("start-up", defaults.start_up_s, "seconds until a new instance works"),
        ("store-lifetime", defaults.store_lifetime_s, "seconds that stored pages live"),
        ("window-hold", defaults.window_hold_s, "seconds that window states are kept"),
        ("fetch-gib-per-s", defaults.fetch_bytes_per_s / 2**30, "a group's link to the store"),
    ):
        replay.add_argument(f"--{name}", type=float, default=value, metavar="X", help=help_text)
    replay.add_argument("--closed-loop", action="store_true", help="sessions wait for answers")
    replay.add_argument(
        "--fail", type=_failure, action="append", default=[], metavar="ROLE:N@S+D",
        help="instance N is gone at S seconds, another is there D seconds later",
    )  # fmt: skip
    replay.add_argument("--json", type=Path, metavar="FILE", help="numbers; default: printed")
    replay.add_argument("--html", type=Path, metavar="FILE", help="a page with plots")
    replay.set_defaults(run=run)


def replay_options(options: argparse.Namespace) -> ReplayOptions:
    """Arguments as options of the simulator."""
    return ReplayOptions(
        policy=options.policy,
        num_prefill=options.prefill,
        num_decode=options.decode,
        max_prefill=options.max_prefill,
        max_decode=options.max_decode,
        ranks_per_group=options.ranks,
        start_up_s=options.start_up,
        store_lifetime_s=options.store_lifetime,
        window_hold_s=options.window_hold,
        fetch_bytes_per_s=options.fetch_gib_per_s * 2**30,
        failures=tuple(options.fail),
        is_closed_loop=options.closed_loop,
        speed=options.speed,
        spread_s=options.spread,
        limit_s=options.limit,
        seed=options.seed,
    )


def _failure(text: str) -> Failure:
    """`decode:1@600+60`: decode instance 1 at 600 s, back after 60 s."""
    try:
        role, _, rest = text.partition(":")
        number, _, times = rest.partition("@")
        at_s, _, down_s = times.partition("+")
        return Failure(float(at_s), Role(role), int(number), float(down_s or 60.0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like decode:1@600+60") from None
