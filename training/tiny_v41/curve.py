"""`python -m training.tiny_v41.curve`: how a run of training went, as a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_FAMILIES = ("recall", "tools", "json", "shapes", "copy", "sort")
_SMOOTHING = 8
"""Lines of the log that a point is the mean of: a line scores some tens of answers."""

Line = Mapping[str, Any]


def lines_of(log: Path) -> list[Line]:
    """The lines of a log.jsonl that measure a step: not those with held-out scores."""
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [line for line in found if "tokens" in line]


def smoothed(values: Sequence[float], count: int = _SMOOTHING) -> list[float]:
    """Each value's mean with up to count - 1 before it."""
    parts = (values[max(0, end - count) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in parts]


def draw(lines: Sequence[Line], path: Path) -> None:
    """Loss on answers, and by family the share of answers that are right token for token."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    losses, shares = figure.subplots(1, 2, sharex=True)
    tokens = [line["tokens"] / 1e6 for line in lines]
    losses.plot(tokens, smoothed([line["answer_loss"] for line in lines]), color="black")
    losses.set(yscale="log", ylabel="loss on tokens of answers, nats", xlabel="million tokens")
    for family in _FAMILIES:
        known = [line for line in lines if family in line["exact"]]
        values = smoothed([line["exact"][family] for line in known])
        shares.plot([line["tokens"] / 1e6 for line in known], values, label=family)
    shares.set(ylabel="answers right, token for token", xlabel="million tokens", ylim=(0, 1.02))
    shares.legend(fontsize=8)
    for panel in (losses, shares):
        for line, last in zip(lines[1:], lines, strict=False):
            if line["stage"] != last["stage"]:
                panel.axvline(line["tokens"] / 1e6, color="gray", linewidth=0.6, linestyle=":")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_v41.curve", description=__doc__)
    parser.add_argument("--log", type=Path, default=Path(".rorqual/training/tiny-v41/log.jsonl"))
    parser.add_argument("--write", type=Path, default=Path("docs/images/tiny-v41-training.png"))
    args = parser.parse_args()
    draw(lines_of(args.log), args.write)


if __name__ == "__main__":
    main()
