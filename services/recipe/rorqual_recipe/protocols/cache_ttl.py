"""How long a request asks for its blocks to be kept: an extension of every protocol."""

import re
from typing import Any

from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.notes import Notes

_FORM = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PARAM = "cache_ttl"


def read_cache_ttl(value: Any, limits: ParseLimits, notes: Notes) -> int:
    """Whole seconds, from such a number or a text like 5m, 1h or 7d; 0 where none is asked for."""
    if value is None:
        return 0
    found = _FORM.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        value = int(found[1]) * _UNITS_S[found[2]]
    if not isinstance(value, int) or isinstance(value, bool):
        notes.problem(_PARAM, "must be a whole number of seconds, or a text like 5m, 1h or 7d")
        return 0
    if not 1 <= value <= limits.max_cache_ttl_s:
        notes.problem(_PARAM, f"from 1 to {limits.max_cache_ttl_s} seconds; got {value}"[:120])
        return 0
    return value
