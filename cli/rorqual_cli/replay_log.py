"""`rorqual replay-log`: the decisions that live services logged, made again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rorqual_sim.decisions import replay_decisions

from rorqual_cli.problems import CliError

_SHOWN = 5


def replay_log(paths: list[Path], home: Path) -> int:
    """Print how many decisions of each kind came out the same; 1 when any did not.

    paths: log files; by default all in the home's log folder.
    Raises: CliError without decisions, or with some that today's policies do not understand.
    """
    paths = paths or sorted((home / "logs").glob("*.log"))
    try:
        found = replay_decisions(_lines(paths))
    except ValueError as error:
        raise CliError(str(error), "was it logged by another version?") from None
    if not found.counts:
        remedy = "start the fleet with RORQUAL_DECISION_LOG=1"
        raise CliError(f"no decisions in {len(paths)} log files", remedy)
    for kind, num in sorted(found.counts.items()):
        differing = [d for d in found.differences if d.kind == kind]
        print(f"{kind:10} {num:7} decisions, {len(differing)} differ")
        for difference in differing[:_SHOWN]:
            print(f"  logged   {difference.logged}\n  replayed {difference.replayed}")
    if found.num_unknown:
        print(f"{found.num_unknown} of kinds that no policy goes by", file=sys.stderr)
    return 1 if found.differences else 0


def _lines(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                for text in file:
                    if '"decision"' not in text:
                        continue
                    try:
                        line = json.loads(text)
                    except ValueError:
                        continue  # cut off by a kill
                    if isinstance(line, dict):
                        yield line
        except OSError as error:
            raise CliError(f"{path}: {error.strerror}") from error
