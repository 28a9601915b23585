"""The sandbox: what a constraint does to the compiler, it does to one killable child alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import xgrammar
from rorqual_grammar.compiler import load_tokenizer_info
from rorqual_grammar.constraint import Constraint, ConstraintKind
from rorqual_grammar.pool import CompilerPool
from rorqual_grammar.settings import GrammarSettings
from rorqual_runtime.errors import InvalidRequest, NoCapacity, Unavailable, Unsupported

from tests.support.tiny_model_dir import EOS_TOKEN_ID, VOCAB_SIZE, make_model_dir
from tests.support.waiting import soon, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EXPLODING_REGEX = "((a{1,1000}){1,1000}){1,1000}(" + "|".join(f"b{i}.*" for i in range(3000)) + ")"
RUNAWAY_REGEX = "((((.{1,9}){1,9}){1,9}){1,9}){1,9}"
"""Compiles at once; its second token takes minutes."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> GrammarSettings:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return GrammarSettings(
        model_dir=model_dir, compile_timeout_s=60.0, compile_memory_bytes=256 << 20
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(settings: GrammarSettings) -> AsyncIterator[CompilerPool]:
    pool = CompilerPool(settings)
    await pool.start()
    yield pool
    await pool.close()


@pytest.fixture(scope="module")
def strict(settings: GrammarSettings) -> GrammarSettings:
    """A limit on time that a bomb soon reaches, and a busy machine with an honest grammar too."""
    return settings.model_copy(update={"compile_timeout_s": 1.0})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict_pool(strict: GrammarSettings) -> AsyncIterator[CompilerPool]:
    pool = CompilerPool(strict)
    await pool.start()
    yield pool
    await pool.close()


def schema(value: object) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value))


def accepts(compiled: bytes, settings: GrammarSettings, text: str) -> bool:
    tokenizer = load_tokenizer_info(settings.model_dir)
    grammar = xgrammar.CompiledGrammar.deserialize_json(compiled.decode(), tokenizer)
    matcher = xgrammar.GrammarMatcher(grammar)
    return bool(matcher.accept_string(text) and matcher.accept_token(EOS_TOKEN_ID))


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (schema(PERSON), '{"name": "Ada", "age": 36}', '{"name": "Ada"}'),
        (schema(PERSON), '{"name": "Ada", "age": 36}', '{ "name": "Ada", "age": 36}'),
        (Constraint(ConstraintKind.JSON_OBJECT, ""), '{"a": [1, null]}', "[1]"),
        (Constraint(ConstraintKind.REGEX, r"[a-z]{3}-\d+"), "abc-42", "ab-42"),
        (Constraint(ConstraintKind.EBNF, 'root ::= "yes" | "no"'), "yes", "maybe"),
    ],
)
async def test_a_grammar_survives_its_journey_and_constrains(
    pool: CompilerPool, settings: GrammarSettings, constraint: Constraint, good: str, bad: str
) -> None:
    compiled = await pool.compile(constraint)
    assert accepts(compiled, settings, good)
    assert not accepts(compiled, settings, bad)


@pytest.mark.parametrize(
    "bound", [{"minLength": 1}, {"maxLength": 9}, {"minLength": 2, "maxLength": 3}]
)
async def test_a_string_with_bounds_takes_no_raw_control_characters(
    pool: CompilerPool, settings: GrammarSettings, bound: dict[str, int]
) -> None:
    """xgrammar 0.2.9 lets them through, and the answer is then no JSON."""
    literal = r"[^\"\\\r\n]"
    compiled = await pool.compile(
        schema({"anyOf": [{"type": "string", **bound}, {"const": literal}]})
    )
    assert accepts(compiled, settings, '"ab"')
    for code in range(0x20):
        assert not accepts(compiled, settings, f'"a{chr(code)}"')
    assert accepts(compiled, settings, json.dumps(literal))


def tag(*elements: dict) -> Constraint:
    source = {"type": "structural_tag", "format": {"type": "sequence", "elements": [*elements]}}
    return Constraint(ConstraintKind.STRUCTURAL_TAG, json.dumps(source))


def text(value: str) -> dict:
    return {"type": "const_string", "value": value}


def shape(value: object, **own: object) -> dict:
    return {"type": "json_schema", "json_schema": value, "param": "tools[0].parameters", **own}


@pytest.mark.parametrize(
    ("part", "good", "bad"),
    [
        (shape(PERSON), '{"name": "Ada", "age": 36}', '{"name":"Ada", "age": 36}'),
        (shape({"$ref": "#/$defs/n", "$defs": {"n": {"enum": [1, 20]}}}), "20", "2"),
        (shape({"type": "string", "minLength": 2}), '"ab"', '"a\n"'),
        (shape({"type": "string", "format": "date"}), '"2024-02-29"', '"2024-13-01"'),
        (shape({"uniqueItems": True}, fallback={"type": "object"}), '{"a": [1, 1]}', "[1]"),
        (shape({"type": "nonsense"}, fallback=True), "{}", "nonsense"),
        ({"type": "regex", "pattern": r"[a-z]{2}-\d+"}, "ab-42", "abc-1"),
        (
            {"type": "grammar", "syntax": "lark", "grammar": 'start: "a" B\nB: /[0-9]+/'},
            "a12",
            "ab",
        ),
        ({"type": "grammar", "grammar": 'root ::= "x" | "y" root'}, "yyx", "yy"),
    ],
)
async def test_what_stands_inside_a_tag_is_held_to_its_shape(
    pool: CompilerPool, settings: GrammarSettings, part: dict, good: str, bad: str
) -> None:
    compiled = await pool.compile(tag(text("<call>"), part, text("</call>")))
    assert accepts(compiled, settings, f"<call>{good}</call>")
    assert not accepts(compiled, settings, f"<call>{bad}</call>")


@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        (
            shape({"uniqueItems": True}),
            Unsupported,
            "break this json schema: keyword 'uniqueItems'",
        ),
        (shape({"type": "nonsense"}), InvalidRequest, "invalid json schema: .*Unsupported type"),
        ({"type": "regex", "pattern": "[a"}, InvalidRequest, "invalid regex: .*Unclosed"),
        ({"type": "grammar", "syntax": "lark", "grammar": "start: ("}, InvalidRequest, "grammar"),
        (shape({"type": "object"}, type="nothing"), InvalidRequest, "invalid structural tag"),
    ],
)
async def test_a_fault_inside_a_tag_names_the_field_it_came_from(
    pool: CompilerPool, part: dict, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        await pool.compile(tag(text("{"), {**part, "param": "tools[2].parameters"}))
    is_located = "structural tag" not in str(caught.value)
    assert caught.value.param == ("tools[2].parameters" if is_located else "tools")


async def compiled_in_the_end(pool: CompilerPool, constraint: Constraint) -> bytes:
    """What comes of an honest constraint; a busy machine may need a few tries within the limit."""
    for _ in range(20):
        with contextlib.suppress(InvalidRequest):
            return await pool.compile(constraint)
    raise AssertionError("it was never compiled")


async def test_a_bomb_inside_a_tag_ends_at_the_same_limits(strict_pool: CompilerPool) -> None:
    deep: dict = text("a")
    for _ in range(400):
        deep = {"type": "sequence", "elements": [deep]}
    for bomb in ({"type": "regex", "pattern": RUNAWAY_REGEX}, deep):
        with pytest.raises(InvalidRequest, match=r"limit of|nested too deeply"):
            await soon(strict_pool.compile(tag(bomb)))
    assert await compiled_in_the_end(strict_pool, tag(text("a"), shape(PERSON)))


async def test_the_mask_is_as_long_as_the_logits(settings: GrammarSettings) -> None:
    tokenizer = load_tokenizer_info(settings.model_dir)
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert list(tokenizer.stop_token_ids) == [EOS_TOKEN_ID]


@pytest.mark.parametrize(
    ("constraint", "says"),
    [
        (schema({"type": "strin"}), "Unsupported type"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "{"), "not JSON"),
        (schema(["no", "schema"]), "Schema should be an object"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "minimum greater than maximum"),
        (schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "Circular"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "[" * 60_000), "nested too deeply"),
        (Constraint(ConstraintKind.REGEX, "[a-z"), "Unclosed"),
        (Constraint(ConstraintKind.EBNF, 'root ::= "a" | b'), "not defined"),
    ],
)
async def test_a_bad_constraint_is_the_callers_fault(
    pool: CompilerPool, constraint: Constraint, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        await pool.compile(constraint)
    assert caught.value.param is not None
    assert caught.value.param.startswith("response_format")
    assert ".cc:" not in caught.value.message


async def test_a_schema_that_would_be_half_enforced_is_refused(pool: CompilerPool) -> None:
    with pytest.raises(Unsupported, match="uniqueItems"):
        await pool.compile(schema({"type": "array", "uniqueItems": True}))


async def test_an_exploding_constraint_ends_at_a_limit_that_the_error_names(
    strict_pool: CompilerPool,
) -> None:
    nested = '{"type":"array","items":' * 2000 + '{"type":"string"}' + "}" * 2000
    bombs = [
        Constraint(ConstraintKind.JSON_SCHEMA, nested),
        Constraint(ConstraintKind.REGEX, EXPLODING_REGEX),
        Constraint(ConstraintKind.REGEX, RUNAWAY_REGEX),
    ]
    for bomb in bombs:
        with pytest.raises(InvalidRequest, match=r"limit of|nested too deeply"):
            await soon(strict_pool.compile(bomb))
    assert await compiled_in_the_end(strict_pool, schema(PERSON)), "the service goes on"


async def test_a_huge_enum_compiles_within_the_limits(
    pool: CompilerPool, settings: GrammarSettings
) -> None:
    compiled = await pool.compile(schema({"enum": [f"value{i}" for i in range(4000)]}))
    assert accepts(compiled, settings, '"value3999"')


async def test_a_grammar_over_the_size_limit_is_refused(settings: GrammarSettings) -> None:
    pool = CompilerPool(settings.model_copy(update={"max_compiled_bytes": 100}))
    await pool.start()
    try:
        with pytest.raises(InvalidRequest, match="exceeds the limit of 100"):
            await pool.compile(schema(PERSON))
    finally:
        await pool.close()


async def test_more_waiting_compilations_than_allowed_are_refused(
    settings: GrammarSettings,
) -> None:
    tight = settings.model_copy(update={"max_concurrent": 1, "max_waiting": 1})
    pool = CompilerPool(tight)
    await pool.start()
    try:
        jobs = [asyncio.create_task(pool.compile(schema({"const": i}))) for i in range(5)]
        results = await asyncio.gather(*jobs, return_exceptions=True)
    finally:
        await pool.close()
    assert sum(isinstance(r, bytes) for r in results) == 2
    assert sum(isinstance(r, NoCapacity) for r in results) == 3
    assert pool.num_pending == 0


async def test_the_sandbox_comes_back_after_its_death(pool: CompilerPool) -> None:
    assert pool.pid is not None
    os.kill(pool.pid, 9)
    await asyncio.sleep(0.05)
    assert await pool.compile(schema(PERSON))


async def test_cancelling_kills_the_child_at_once(pool: CompilerPool) -> None:
    job = asyncio.create_task(pool.compile(Constraint(ConstraintKind.REGEX, EXPLODING_REGEX)))
    await asyncio.sleep(0.3)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    children = Path(f"/proc/{pool.pid}/task/{pool.pid}/children")
    await until(lambda: pool.pid is not None and not children.read_text().strip())


async def test_a_model_without_tokenizer_stops_the_start(
    settings: GrammarSettings, tmp_path: object
) -> None:
    pool = CompilerPool(settings.model_copy(update={"model_dir": tmp_path}))
    with pytest.raises(Unavailable, match=r"did not start: .*config\.json"):
        await pool.start()
