"""The variables a fleet knows: a misspelt one stops the start, as a wrong value does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

from rorqual_runtime.settings import known_variables

from rorqual_cli.options import SERVICES
from rorqual_cli.problems import CliError

_PREFIX = "RORQUAL_"


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises: CliError that names the variable no service reads, and the one that was meant."""
    given = sorted(name for name in environment if name.upper().startswith(_PREFIX))
    if not given:
        return
    for service in SERVICES:
        import_module(f"rorqual_{service}.settings")
    known = known_variables()
    for name in given:
        if name.upper() not in known:
            meant = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            remedy = f"did you mean {meant[0]}?" if meant else "unset it"
            raise CliError(f"no service has a setting {name}", remedy)
