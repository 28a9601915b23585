"""Arguments of `rorqual kv`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

_ACTIONS = {
    "ls": "blocks, the last used first",
    "stat": "sums over all blocks",
    "verify": "read every block; damaged ones are removed",
    "gc": "remove blocks: the expired, or those that the options name",
    "export": "write blocks into a file",
    "import": "put the blocks of a file into the store",
}


def add_kv(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    home: argparse.ArgumentParser,
    run: Callable[..., int],
) -> None:
    kv = commands.add_parser("kv", help="the store of KV blocks")
    actions = kv.add_subparsers(required=True, metavar="ACTION")
    for action, text in _ACTIONS.items():
        parser = actions.add_parser(action, parents=[home], help=text, description=text)
        parser.add_argument(
            "--store", metavar="PLACE", help="directory or redis:// URL; default: store/ in --home"
        )
        parser.add_argument("--json", action="store_true", help="machine-readable output")
        if action in ("ls", "gc", "export", "verify"):
            parser.add_argument("--fingerprint", metavar="F", help="only blocks of this model")
        if action == "ls":
            parser.add_argument("--limit", type=int, default=100, metavar="N", help="0 = all")
        if action == "gc":
            parser.add_argument(
                "--unused-days", type=float, metavar="D", help="also blocks not read for so long"
            )
            parser.add_argument("--all", action="store_true", help="also every other block")
        if action == "import":
            parser.add_argument(
                "--capacity", type=int, default=8 << 30, metavar="BYTES", help="of the store"
            )
        if action in ("export", "import"):
            parser.add_argument("file", type=Path, help="the archive")
        parser.set_defaults(run=run, action=action)
    _add_clear(actions, home, run)


def _add_clear(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    home: argparse.ArgumentParser,
    run: Callable[..., int],
) -> None:
    text = "have a running fleet forget blocks, of a tenant, of a model, or all"
    parser = actions.add_parser("clear", parents=[home], help=text, description=text)
    parser.add_argument("--nats-url", help="default: that of the fleet in --home")
    whose = parser.add_argument_group("whose", "at least one of these")
    whose.add_argument("--tenant", metavar="T", help='as its key says; "" is who needs no key')
    whose.add_argument("--fingerprint", metavar="F", help="of the model")
    whose.add_argument("--all", action="store_true", help="of everybody")
    parser.set_defaults(run=run, action="clear")
