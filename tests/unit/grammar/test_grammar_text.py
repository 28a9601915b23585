"""A grammar written as text and read again means the same."""

from __future__ import annotations

import json

import pytest
import xgrammar
from rorqual_grammar.grammar_text import grammar_text
from rorqual_grammar.json_grammar import schema_grammar
from xgrammar.testing import _is_grammar_accept_string

CHARACTERS = [*range(1, 0x180), 0x4FA1, 0x1F40B]


@pytest.mark.parametrize("following", ["e", "0", "g", "ß"])
def test_no_character_runs_into_the_next(following: str) -> None:
    for code in CHARACTERS:
        text = chr(code) + following
        escaped = "".join(f"\\U{ord(c):08x}" for c in text)
        grammar = xgrammar.Grammar.from_ebnf(f'root ::= "{escaped}" [{escaped[:10]}]')
        again = xgrammar.Grammar.from_ebnf(grammar_text(grammar))
        assert _is_grammar_accept_string(again, text + chr(code)), hex(code)


@pytest.mark.parametrize("name", ["größe", "städte", "naïve", "a\\xdfe", 'q"ÿ0', "価格a", "\x01e"])
def test_names_and_values_of_a_schema_stay_what_they_are(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"const": name}, "s": {"type": "string", "maxLength": 3}},
        "required": [name, "s"],
        "additionalProperties": False,
    }
    grammar = schema_grammar(json.dumps(schema))
    again = xgrammar.Grammar.from_ebnf(grammar_text(grammar))
    spelt = json.dumps({name: name, "s": "abc"}, ensure_ascii=False)
    for one in (grammar, again):
        assert _is_grammar_accept_string(one, spelt)
        assert not _is_grammar_accept_string(one, spelt.replace("abc", "abcd"))
