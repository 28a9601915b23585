"""What comparing one case with the reference gave."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DIFFERENCES = Path(__file__).parents[2] / "services/recipe/DIFFERENCES.md"
_ENTRY = re.compile(r"^#+ (D-(?:REQ|STR|SHP)-\d\d)\b", re.MULTILINE)
_MAX_CHARS = 90


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the reference has it.

    entry: its id in DIFFERENCES.md; None = nothing there explains it.
    """

    field: str
    ours: object
    theirs: object
    entry: str | None = None

    def line(self) -> str:
        """What differs, short, and where it is explained."""
        where = self.entry or "NO ENTRY"
        return f"{self.field}: ours {_short(self.ours)}, reference {_short(self.theirs)} [{where}]"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case compared."""

    case_id: str
    group: str
    differences: tuple[Difference, ...] = ()

    @property
    def passed(self) -> bool:
        """Nothing differs but what is explained."""
        return all(difference.entry is not None for difference in self.differences)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def known_entries() -> frozenset[str]:
    """Ids of everything DIFFERENCES.md explains."""
    return frozenset(_ENTRY.findall(DIFFERENCES.read_text(encoding="utf-8")))


def first_difference(ours: str, theirs: str) -> tuple[str, str]:
    """Both texts from a little before the place where they part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    start = max(0, at - 20)
    return ours[start : at + 60], theirs[start : at + 60]
