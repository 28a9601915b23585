"""Constraint -> serialised grammar with xgrammar. Runs inside the sandbox, never in the service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import xgrammar

from rorqual_grammar.constraint import Constraint, ConstraintKind
from rorqual_grammar.schema_check import find_unenforced
from rorqual_grammar.trial import try_out
from rorqual_grammar.vocabulary import read_vocabulary

_SOURCE_POSITION = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is \w+: )?")
_BOUNDED_CHARACTER = re.compile(r'^(\S+ ::= \(\(\[\^)(\\"\\\\\\r\\n\]\)\))$', re.MULTILINE)
"""The rule xgrammar 0.2.9 writes for one character of a string with minLength or maxLength. Unlike
that of other strings it allows raw control characters, which JSON does not."""
_ANY_OBJECT = '{"type":"object"}'


class BadConstraint(Exception):
    """The constraint can't be compiled; the text is for the caller."""


class UnenforceableConstraint(BadConstraint):
    """Valid, but the answer could still break it."""


def load_tokenizer_info(model_dir: Path) -> xgrammar.TokenizerInfo:
    """The tokenizer description that every grammar of this model is bound to.

    Raises: VocabularyError.
    """
    vocabulary = read_vocabulary(model_dir)
    return xgrammar.TokenizerInfo(
        vocabulary.encoded,
        xgrammar.VocabType.BYTE_LEVEL,
        vocab_size=len(vocabulary.encoded),
        stop_token_ids=vocabulary.stop_token_ids,
    )


def compile_constraint(constraint: Constraint, tokenizer: xgrammar.TokenizerInfo) -> bytes:
    """The grammar as xgrammar's serialised JSON.

    JSON is written compactly, with one space after colon and comma and none elsewhere: free
    whitespace lets a small model pad for ever instead of closing its braces.
    Raises: BadConstraint.
    """
    if constraint.kind is ConstraintKind.JSON_SCHEMA:
        _check_schema(constraint.source)
    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
    try:
        compiled = _compile(compiler, constraint)
        try_out(compiled, tokenizer)
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError from error
        raise BadConstraint(_SOURCE_POSITION.sub("", str(error)).strip()) from error
    text: str = compiled.serialize_json()
    return text.encode()


def _compile(
    compiler: xgrammar.GrammarCompiler, constraint: Constraint
) -> xgrammar.CompiledGrammar:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return compiler.compile_grammar(_schema_grammar(constraint.source))
        case ConstraintKind.JSON_OBJECT:
            return compiler.compile_grammar(_schema_grammar(_ANY_OBJECT))
        case ConstraintKind.REGEX:
            return compiler.compile_regex(constraint.source)
        case ConstraintKind.EBNF:
            return compiler.compile_grammar(constraint.source)


def _schema_grammar(source: str) -> xgrammar.Grammar:
    grammar = xgrammar.Grammar.from_json_schema(source, any_whitespace=False)
    rules, num_changed = _BOUNDED_CHARACTER.subn(r"\1\\0-\\x1f\2", str(grammar))
    return xgrammar.Grammar.from_ebnf(rules) if num_changed else grammar


def _check_schema(source: str) -> None:
    try:
        schema = json.loads(source)
    except RecursionError:
        raise BadConstraint("the schema is nested too deeply") from None
    except ValueError as error:
        raise BadConstraint(f"the schema is not JSON: {error}") from error
    problem = find_unenforced(schema)
    if problem:
        raise UnenforceableConstraint(problem)
