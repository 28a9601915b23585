"""Constraint -> serialised grammar with xgrammar. Runs inside the sandbox, never in the service."""

from __future__ import annotations

from pathlib import Path

import xgrammar

from rorqual_grammar.constraint import Constraint, ConstraintKind
from rorqual_grammar.json_grammar import ANY_OBJECT, schema_grammar
from rorqual_grammar.rejection import BadConstraint, clean_text
from rorqual_grammar.structural_tag import prepare_tag
from rorqual_grammar.trial import try_out
from rorqual_grammar.vocabulary import read_vocabulary


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

    Raises: BadConstraint.
    """
    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=1, cache_enabled=False)
    try:
        compiled = _compile(compiler, constraint)
        try_out(compiled, tokenizer)
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError from error
        raise BadConstraint(clean_text(error)) from error
    text: str = compiled.serialize_json()
    return text.encode()


def _compile(
    compiler: xgrammar.GrammarCompiler, constraint: Constraint
) -> xgrammar.CompiledGrammar:
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return compiler.compile_grammar(schema_grammar(constraint.source))
        case ConstraintKind.JSON_OBJECT:
            return compiler.compile_grammar(schema_grammar(ANY_OBJECT))
        case ConstraintKind.REGEX:
            return compiler.compile_regex(constraint.source)
        case ConstraintKind.EBNF:
            return compiler.compile_grammar(constraint.source)
        case ConstraintKind.STRUCTURAL_TAG:
            return compiler.compile_structural_tag(prepare_tag(constraint.source))
