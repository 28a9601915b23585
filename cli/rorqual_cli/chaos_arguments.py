"""Arguments of `rorqual chaos`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

Run = Callable[[argparse.Namespace, Sequence[str]], int]


def add_chaos(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    home: argparse.ArgumentParser,
    run: Run,
) -> None:
    """The command and its options."""
    text = "a fleet of its own under load and faults; one JSON line says what it made of them"
    chaos = commands.add_parser("chaos", parents=[home], help=text, description=text)
    chaos.add_argument("fault", nargs="*", help="words of faults' names; default: all there are")
    chaos.add_argument("--model", default="random-v41", help="known id, GGUF file or directory")
    chaos.add_argument("--seed", type=int, default=0, help="which faults come when")
    chaos.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time of load")
    chaos.add_argument("--every", type=float, default=10.0, metavar="S", help="between two faults")
    chaos.add_argument("--clients", type=int, default=32, metavar="N", help="streams at once")
    chaos.add_argument(
        "--table", type=Path, metavar="FILE", help="each fault for itself, and a page about them"
    )
    chaos.add_argument("--minutes", type=float, metavar="M", help="instead of --seconds")
    help_memory = "no process may grow by 3%% from minute 5 on; of those killed nothing is compared"
    chaos.add_argument("--memory", action="store_true", help=help_memory)
    chaos.add_argument(
        "--cancels", type=int, default=0, metavar="N", help="instead of faults, clients that leave"
    )
    chaos.set_defaults(run=run)
