"""`make vectors-generated`: cases made up from a seed, compared with the reference."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.dsml_model_dir import make_dsml_model_dir
from tests.vectors.outcome import Outcome
from tests.vectors.rare_requests import RareRequests
from tests.vectors.reference import Reference
from tests.vectors.request_generator import RequestGenerator
from tests.vectors.request_mutator import RequestMutator
from tests.vectors.run import Checks
from tests.vectors.stream_generator import StreamGenerator

PROTOCOLS = ("chat", "responses", "messages")


def main() -> int:
    """Exit code 0 when every difference is explained."""
    options = _parser().parse_args()
    failed = 0
    for kind in options.kinds if not options.mutate else ():
        for protocol in PROTOCOLS:
            found = outcomes(kind, protocol, options.seed, options.count)
            failed += _report(f"{protocol} {kind}", found, options.verbose)
    if options.mutate:
        found = mutated(options.mutate, options.seed, options.count)
        failed += _report("changed requests", found, options.verbose)
    return 1 if failed else 0


def _report(name: str, found: Iterator[Outcome], verbose: bool) -> int:
    """Prints what differs and how many; returns how many nothing explains."""
    counts: Counter[str] = Counter()
    for outcome in found:
        counts["failed"] += not outcome.passed
        counts["as the reference"] += not outcome.differences
        counts["explained"] += outcome.passed and bool(outcome.differences)
        for difference in outcome.differences:
            if verbose or difference.entry is None:
                print(f"{outcome.case_id}: {difference.line()}")
    print(f"{name}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    return counts["failed"]


def mutated(files: list[Path], seed: int, count: int) -> Iterator[Outcome]:
    """Compares `count` requests made from those of files by changing something."""
    tokenizer = files[0].parent / "tokenizer.json"
    mutator = RequestMutator(files, seed, Reference(tokenizer))
    with Checks(tokenizer) as check:
        for number in range(count):
            yield check(mutator.case(number))


def outcomes(kind: str, protocol: str, seed: int, count: int) -> Iterator[Outcome]:
    """Compares `count` generated cases; kind: requests, rare (requests) or streams."""
    with TemporaryDirectory(prefix="rorqual-generated-") as folder:
        tokenizer = make_dsml_model_dir(Path(folder), encoding="deepseek-v4.1") / "tokenizer.json"
        generator: Any
        if kind == "streams":
            generator = StreamGenerator(protocol, seed, tokenizer)
        else:
            make = {"requests": RequestGenerator, "rare": RareRequests}[kind]
            generator = make(protocol, seed, Reference(tokenizer))
        with Checks(tokenizer) as check:
            for number in range(count):
                yield check(generator.case(number))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="cases of each protocol")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["requests", "rare", "streams"])
    parser.add_argument("--mutate", nargs="+", type=Path, metavar="FILE", help="cases to change")
    parser.add_argument("--verbose", action="store_true", help="explained differences too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
