"""What `rorqual bench` can be told."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from rorqual_cli.model import DEFAULT_MODEL

_LARGEST = {"prefill": 4096, "decode": 128}
_CONTEXT_TOKENS = {"prefill": 0, "decode": 200}


def add_bench(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    home: argparse.ArgumentParser,
    run: Callable[..., int],
    count: Callable[[str], int],
    seconds: Callable[[str], float],
) -> None:
    """The arguments of `rorqual bench`."""
    text = "measure the curve of a model on this machine: JSON and PNG"
    kinds = commands.add_parser("bench", help=text).add_subparsers(required=True, metavar="CURVE")
    about = {
        "prefill": "tokens/s per card and ms per step, by tokens per rank",
        "decode": "tokens/s per card against tokens/s per user",
    }
    for kind, what in about.items():
        bench = kinds.add_parser(kind, parents=[home], help=what, description=what)
        bench.add_argument(
            "--model", default=DEFAULT_MODEL, help="known id, GGUF file or directory"
        )
        bench.add_argument("--device", default="cpu", help="torch device")
        bench.add_argument("--seconds", type=seconds, default=30.0, metavar="S", help="about")
        unit = "tokens of the largest step" if kind == "prefill" else "most that run together"
        bench.add_argument("--largest", type=count, default=_LARGEST[kind], metavar="N", help=unit)
        bench.add_argument(
            "--context",
            type=_num_tokens,
            default=_CONTEXT_TOKENS[kind],
            metavar="N",
            help="tokens in front of each step's",
        )
        bench.add_argument(
            "--out", type=Path, default=Path(f"{kind}-curve"), help="becomes .json and .png"
        )
        bench.set_defaults(run=run, kind=kind)


def _num_tokens(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens")
    return int(text)
