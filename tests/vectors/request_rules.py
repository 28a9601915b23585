"""Which entry of DIFFERENCES.md explains that we accept, refuse or set something else."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]


def explain_accepted(case: Case) -> str | None:
    return None


def explain_refused(case: Case, text: str) -> str | None:
    return None


def explain_field(case: Case, field: str, ours: Any, theirs: Any) -> str | None:
    return None
