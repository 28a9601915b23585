"""A grammar as text that reads back as the same grammar. Runs inside the sandbox."""

from __future__ import annotations

import re

import xgrammar

_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)


def grammar_text(grammar: xgrammar.Grammar) -> str:
    """EBNF of a grammar.

    xgrammar 0.2.9 writes characters up to ÿ as \\xHH and reads as many digits behind \\x as there
    are: "ße", written \\xdfe, comes back as one other character. \\u has four digits in any case.
    """
    return _ESCAPED.sub(_with_four_digits, str(grammar))


def _with_four_digits(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f"\\u00{found[1]}"
