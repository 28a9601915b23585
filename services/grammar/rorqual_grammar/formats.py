"""Formats of strings: which are enforced, and by what. Runs inside the sandbox.

xgrammar 0.2.9 knows them, but some of its grammars also write what is none (30 February, octets
like 000, second 60 of any minute), and beside a format it drops pattern and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Format(NamedTuple):
    """Strings of a format."""

    pattern: str | None
    """Of the whole string, all valid; None = the compiler's own grammar is."""
    shortest: int
    longest: float
    """Characters"""


_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_BY_FOUR = "(0[48]|[2468][048]|[13579][26])"
_DAYS = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_DAYS}|([0-9]{{2}}{_BY_FOUR}|{_BY_FOUR}00)-02-29)"
_MINUTE = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_MINUTE}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_MINUTE})"

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP = "[0-9a-fA-F]{1,4}"


def _ipv6() -> str:
    """All eight groups, or :: for one or more of them."""
    ways = [f"({_GROUP}:){{7}}{_GROUP}"]
    for before in range(8):
        after = 7 - before
        left = f"{_GROUP}(:{_GROUP}){{{before - 1}}}" if before else ""
        right = f"({_GROUP}(:{_GROUP}){{0,{after - 1}}})?" if after else ""
        ways.append(f"{left}::{right}")
    ways.append(f"::([fF]{{4}}:)?{_IPV4}")
    return f"({'|'.join(ways)})"


FORMATS = {
    "date": Format(_DATE, 10, 10),
    "time": Format(_TIME, 9, 24),
    "date-time": Format(f"{_DATE}T{_TIME}", 20, 35),
    "ipv4": Format(_IPV4, 7, 15),
    "ipv6": Format(_ipv6(), 2, 39),
    "hostname": Format(None, 1, math.inf),
    "email": Format(None, 3, math.inf),
    "uuid": Format(None, 36, 36),
    "duration": Format(None, 3, math.inf),
    "uri": Format(None, 2, math.inf),
    "uri-reference": Format(None, 0, math.inf),
    "uri-template": Format(None, 0, math.inf),
    "json-pointer": Format(None, 0, math.inf),
    "relative-json-pointer": Format(None, 1, math.inf),
}
"""What the compiler takes for a format; to others it pays no heed."""


def write_out(nodes: Iterable[dict[str, Any]]) -> bool:
    """Put what the compiler enforces in the place of each schema's format; says whether anything
    changed. A format is a mere note in JSON Schema: where pattern or lengths say something else
    about the string, they are kept and it goes."""
    has_changed = False
    for node in nodes:
        known = FORMATS.get(node["format"]) if isinstance(node.get("format"), str) else None
        if known is None:
            continue
        if "pattern" in node or not _keeps_lengths(known, node):
            del node["format"]
        else:
            node.pop("minLength", None)
            node.pop("maxLength", None)
            if known.pattern is not None:
                del node["format"]
                node["pattern"] = f"^{known.pattern}$"
        has_changed = True
    return has_changed


def _keeps_lengths(known: Format, node: dict[str, Any]) -> bool:
    """Whether every string of the format is as long as it has to be."""
    least, most = node.get("minLength", 0), node.get("maxLength", math.inf)
    if not all(isinstance(bound, int | float) for bound in (least, most)):
        return True  # the compiler says what is wrong with them
    return bool(least <= known.shortest and known.longest <= most)
