"""JSON as this service writes it: two spacings, one way to spell a string."""

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring  # type: ignore[attr-defined]
from typing import Any

json_string: Callable[[str], str] = encode_basestring
"""A string with its quotes; only what JSON must escape is escaped."""

_STRING_OR_SMALL = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<mantissa>\d(?:\.\d+)?)e-0(?P<exponent>\d)')


def compact_json(value: Any, *, short_exponents: bool = False) -> str:
    """JSON without spaces, in the order it came, characters as they are.

    short_exponents: small numbers as 0.00001 and 1e-6, not as 1e-05 and 1e-06.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _with_short_exponents(text) if short_exponents else text


def spaced_json(value: Any, *, short_exponents: bool = False) -> str:
    """JSON with `, ` and `: `, as models read and write it; else as compact_json."""
    text = json.dumps(value, ensure_ascii=False)
    return _with_short_exponents(text) if short_exponents else text


def _with_short_exponents(text: str) -> str:
    return _STRING_OR_SMALL.sub(_shortened, text) if "e-0" in text else text


def _shortened(match: re.Match[str]) -> str:
    mantissa, exponent = match["mantissa"], match["exponent"]
    if mantissa is None:
        return match[0]
    if exponent != "5":
        return f"{mantissa}e-{exponent}"
    return f"0.0000{mantissa.replace('.', '')}"
