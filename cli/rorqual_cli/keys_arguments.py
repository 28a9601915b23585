"""Arguments of `rorqual keys`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from rorqual_runtime.accounts.keys import Scope


def add_keys(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    home: argparse.ArgumentParser,
    run: Callable[..., int],
) -> None:
    keys = commands.add_parser("keys", help="API keys of a fleet")
    actions = keys.add_subparsers(required=True, metavar="ACTION")
    common = argparse.ArgumentParser(add_help=False, parents=[home])
    common.add_argument("--redis-url", metavar="URL", help="default: that of the fleet in --home")
    common.add_argument("--json", action="store_true", help="machine-readable output")
    create = actions.add_parser("create", parents=[common], help="make a key; it is shown once")
    create.add_argument("name", help="for people: whose key this is")
    create.add_argument("--tenant", help="who shares a cache; default: the key alone")
    create.add_argument(
        "--scope",
        action="append",
        choices=[scope.value for scope in Scope],
        help="what it opens, may be repeated; default: inference",
    )
    create.add_argument("--requests-per-minute", type=int, metavar="N")
    create.add_argument("--tokens-per-minute", type=int, metavar="N")
    create.add_argument("--max-concurrent", type=int, metavar="N", help="requests at once")
    create.add_argument("--expires-days", type=float, metavar="D", help="default: never")
    create.set_defaults(run=run, action="create")
    listing = actions.add_parser("list", parents=[common], help="all keys, never the secrets")
    listing.set_defaults(run=run, action="list")
    revoke = actions.add_parser("revoke", parents=[common], help="a key stops working")
    revoke.add_argument("id", help="as `rorqual keys list` shows it")
    revoke.set_defaults(run=run, action="revoke")
