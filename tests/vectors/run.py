"""`make vectors FILES="a.jsonl b.jsonl"`: compares files of cases with the reference's answers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rorqual_cli.problems import CliError

from tests.vectors.outcome import Outcome, known_entries

Case = dict[str, Any]
Check = Callable[[Case], Outcome]


def main() -> int:
    """Exit code 0 when every difference is explained."""
    options = _parser().parse_args()
    passed = failed = 0
    try:
        for path in options.files:
            tokenizer = options.tokenizer or path.parent / "tokenizer.json"
            counts = run_file(path, tokenizer, only=options.only, quiet=options.quiet)
            print(f"{path.name}: {counts[0]} passed, {counts[1]} failed")
            passed, failed = passed + counts[0], failed + counts[1]
    except (CliError, OSError) as error:
        print(f"vectors: {error}", file=sys.stderr)
        return 2
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def run_file(
    path: Path, tokenizer: Path, *, only: str = "", quiet: bool = False
) -> tuple[int, int]:
    """Checks every case of a file and prints a line a difference; returns (passed, failed)."""
    counts = [0, 0]
    with Checks(tokenizer) as check, path.open(encoding="utf-8") as lines:
        for outcome in _outcomes(lines, check, only):
            counts[0 if outcome.passed else 1] += 1
            for difference in outcome.differences:
                if not quiet or difference.entry is None:
                    print(f"{outcome.case_id} {outcome.group}: {difference.line()}")
    return counts[0], counts[1]


def _outcomes(lines: Iterator[str], check: Check, only: str) -> Iterator[Outcome]:
    for line in lines:
        if line.strip():
            case = json.loads(line)
            if only in (*("", case["id"], case["proto"], case["group"]),):
                yield check(case)


class Checks:
    """Knows how to check requests and streams; what they need is made when it is needed."""

    def __init__(self, tokenizer: Path) -> None:
        self._tokenizer = tokenizer
        self._requests: Any = None
        self._streams: Any = None
        self._entries = known_entries()

    def __enter__(self) -> Check:
        return self._check

    def __exit__(self, *_: object) -> None:
        for checks in (self._requests, self._streams):
            if checks is not None:
                checks.close()

    def _check(self, case: Case) -> Outcome:
        outcome = self._check_stream(case) if "chunks" in case else self._check_request(case)
        entries = {e for d in outcome.differences if d.entry for e in d.entry.split("+")}
        unknown = sorted(entries - self._entries)
        assert not unknown, f"{outcome.case_id}: DIFFERENCES.md has no entry {unknown}"
        return outcome

    def _check_request(self, case: Case) -> Outcome:
        from tests.vectors.requests import RequestChecks

        if self._requests is None:
            self._requests = RequestChecks(self._tokenizer)
        return self._requests.check(case)

    def _check_stream(self, case: Case) -> Outcome:
        from tests.vectors.streams import StreamChecks

        if self._streams is None:
            self._streams = StreamChecks(self._tokenizer)
        return self._streams.check(case)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files of cases, one a line")
    parser.add_argument("--tokenizer", type=Path, help="default: tokenizer.json beside the file")
    parser.add_argument("--only", default="", help="an id, a protocol or a group")
    parser.add_argument("--quiet", action="store_true", help="explained differences unsaid")
    return parser


if __name__ == "__main__":
    sys.exit(main())
