"""JSON Schema -> grammar. Runs inside the sandbox.

JSON is written compactly, with one space after colon and comma and none elsewhere: free whitespace
lets a small model pad for ever instead of closing its braces.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import xgrammar

from rorqual_grammar.formats import write_out
from rorqual_grammar.grammar_text import grammar_text
from rorqual_grammar.rejection import BadConstraint, UnenforceableConstraint
from rorqual_grammar.schema_check import find_patterns, find_unenforced, subschemas

_SHOWN = 40
ANY_OBJECT = '{"type":"object"}'
_BOUNDED_CHARACTER = re.compile(r'^(\S+ ::= \(\(\[\^)(\\"\\\\\\r\\n\]\)\))$', re.MULTILINE)
"""The rule xgrammar 0.2.9 writes for one character of a string with minLength or maxLength. Unlike
that of other strings it allows raw control characters, which JSON does not."""


def schema_grammar(source: str) -> xgrammar.Grammar:
    """The grammar of a schema's instances.

    Raises: BadConstraint; RuntimeError with the compiler's words.
    """
    schema = _parsed(source)
    _check(schema)
    enforced = _unparsed(schema) if write_out(subschemas(schema)) else source
    grammar = xgrammar.Grammar.from_json_schema(enforced, any_whitespace=False)
    rules, num_changed = _BOUNDED_CHARACTER.subn(r"\1\\0-\\x1f\2", grammar_text(grammar))
    return xgrammar.Grammar.from_ebnf(rules) if num_changed else grammar


def _parsed(source: str) -> Any:
    try:
        return json.loads(source, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise BadConstraint("the schema is nested too deeply") from None
    except ValueError as error:
        raise BadConstraint(f"the schema is not JSON: {error}") from error


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise BadConstraint(f"the schema has {literal[:_SHOWN]}, which is no finite number")
    return value


def _unparsed(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except RecursionError:
        raise BadConstraint("the schema is nested too deeply") from None


def _check(schema: Any) -> None:
    problem = find_unenforced(schema)
    if problem:
        raise UnenforceableConstraint(problem)
    for pattern in dict.fromkeys(find_patterns(schema)):
        # What the compiler makes of a schema's pattern takes a lookahead for nothing; this refuses.
        xgrammar.Grammar.from_regex(pattern)
