"""What an answer is held to, tried out with the grammar compiler on a byte-level vocabulary."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import xgrammar
from rorqual_engine.closing import ClosingVocabulary, find_way
from rorqual_engine.grammar import GrammarState
from rorqual_grammar.compiler import compile_constraint
from rorqual_grammar.constraint import Constraint
from rorqual_grammar.constraint import ConstraintKind as CompiledKind
from rorqual_recipe.constraints import answer_constraint
from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    OutputConstraint,
    Thinking,
    Tool,
    ToolChoice,
    ToolChoiceMode,
    ToolKind,
)
from rorqual_recipe.encodings.base import AnswerStage, RenderedPrompt
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.events import FinishReason, ToolCallBegan, ToolCallEnded
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.problems import RequestRefused
from rorqual_recipe.tokens.vocabulary import Vocabulary
from tokenizers import pre_tokenizers

MARKS = (
    *("<|end|>", "｜DSML｜", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "</think>", "<think>"),
    "[ARGS]",
)
EVERY_TOKEN = {mark: 256 + index for index, mark in enumerate(MARKS)}
TOKENS = {mark: token for mark, token in EVERY_TOKEN.items() if mark != "[ARGS]"}
END = TOKENS["<|end|>"]
AUTO, REQUIRED = ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED
FORMATS = ("hermes", "llama3-json", "mistral", "dsml-v4", "dsml-v4.1")
WEATHER = Tool(
    "weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"$ref": "#/$defs/days"},
            "unit": {"enum": ["c", "f", None]},
        },
        "required": ["city", "days"],
        "$defs": {"days": {"enum": [1, 3, 10]}},
    },
    strict=True,
    param="tools[0].function.parameters",
)
NOTE = Tool("note", parameters={"type": "object", "properties": {"x": {"not": {}}}})
SHAPE = OutputConstraint(ConstraintKind.JSON_SCHEMA, '{"enum": [7]}', "response_format")
CALLS = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": %s}\n</tool_call>',
    "llama3-json": '{"name": "weather", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": %s}]',
    "dsml-v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n%s</｜DSML｜invoke>\n'
    "</｜DSML｜tool_calls>",
    "dsml-v4.1": '<｜DSML｜ calls>\n<｜DSML｜ invoke name="weather">\n%s</｜DSML｜ invoke>\n'
    "</｜DSML｜ calls>",
}


def _byte_level() -> list[str]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    kept = {chr(byte) for byte in printable}
    others = [char for char in alphabet if char not in kept]
    return [chr(byte) if byte in printable else others.pop(0) for byte in range(256)]


TOKENIZER = xgrammar.TokenizerInfo(
    [*_byte_level(), *MARKS, "</"], xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[END]
)


def ids_of(text: str, tokens: dict[str, int]) -> list[int]:
    """Marks as tokens where they are in the vocabulary, everything else as bytes."""
    ids: list[int] = []
    while text:
        mark = next((mark for mark in tokens if text.startswith(mark)), None)
        ids += [tokens[mark]] if mark else text[0].encode()
        text = text[len(mark or text[0]) :]
    return ids


def allowed(matcher: xgrammar.GrammarMatcher) -> set[int]:
    mask = np.full((1, -(-TOKENIZER.vocab_size // 32)), -1, np.int32)
    matcher.fill_next_token_bitmask(mask, 0)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: TOKENIZER.vocab_size]
    return set(np.flatnonzero(bits).tolist())


class Held:
    """The constraint of one conversation, ready to be tried."""

    def __init__(
        self,
        tool_format: str = "none",
        tools: Sequence[Tool] = (),
        *,
        tokens: dict[str, int] | None = None,
        stage: AnswerStage = AnswerStage.CONTENT,
        choice: ToolChoice | None = None,
        shape: OutputConstraint | None = None,
        budget: int | None = None,
        inside: bool = False,
        thinks: bool = False,
    ) -> None:
        self._tokens = TOKENS if tokens is None else tokens
        conversation = Conversation(
            (),
            tools=tuple(tools),
            tool_choice=choice or ToolChoice(),
            thinking=Thinking(budget_tokens=budget),
            response_format=shape,
        )
        prompt = RenderedPrompt(
            (),
            stage=stage,
            thinks=thinks,
            starts_in_tool_calls=inside,
            tool_format=tool_format,
            tools={tool.name: tool for tool in tools},
            reasoning_marks=("<think>", "</think>"),
        )
        self.constraint, self.warnings = answer_constraint(conversation, prompt, self._tokens)
        self._compiled: xgrammar.CompiledGrammar | None = None

    def compiled(self) -> xgrammar.CompiledGrammar:
        assert self.constraint is not None
        if self._compiled is None:
            kind = CompiledKind(self.constraint.kind.value)
            data = compile_constraint(Constraint(kind, self.constraint.source), TOKENIZER)
            self._compiled = xgrammar.CompiledGrammar.deserialize_json(data.decode(), TOKENIZER)
        return self._compiled

    def allowed_after(self, text: bytes) -> set[int]:
        """Tokens that may follow the text."""
        matcher = xgrammar.GrammarMatcher(self.compiled())
        assert all(matcher.accept_token(byte) for byte in text)
        return allowed(matcher)

    def takes(self, text: str | list[int]) -> bool:
        """Whether the whole text, and then the end, is allowed."""
        matcher = xgrammar.GrammarMatcher(self.compiled())
        ids = ids_of(text, self._tokens) if isinstance(text, str) else text
        return all(
            token_id in allowed(matcher) and matcher.accept_token(token_id)
            for token_id in [*ids, END]
        )


def arguments(tool_format: str, **values: Any) -> str:
    """Arguments as the format writes them."""
    if not tool_format.startswith("dsml"):
        return json.dumps(values, ensure_ascii=False)
    gap = " " if tool_format == "dsml-v4.1" else ""
    return "".join(
        f'<｜DSML｜{gap}parameter name="{name}" string="{"true" if is_text else "false"}">'
        f"{value if is_text else json.dumps(value)}</｜DSML｜{gap}parameter>\n"
        for name, value in values.items()
        for is_text in [isinstance(value, str)]
    )


def call(tool_format: str, **values: Any) -> str:
    return CALLS[tool_format] % arguments(tool_format, **values)


@pytest.mark.parametrize("tokens", [TOKENS, {"<|end|>": END}], ids=["tokens", "spelled"])
@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_call_that_must_be_made_is_made_with_arguments_that_fit(
    tool_format: str, tokens: dict[str, int]
) -> None:
    held = Held(tool_format, [WEATHER], tokens=tokens, choice=ToolChoice(REQUIRED))
    assert held.warnings == ()
    assert held.takes(call(tool_format, city="Zürich <b>", days=3))
    assert held.takes(call(tool_format, city="", days=10, unit="f"))
    assert held.takes(call(tool_format, city="x", days=1, unit=None))
    assert not held.takes(call(tool_format, city="x", days=2))
    assert not held.takes(call(tool_format, city="x", days="3"))
    assert not held.takes(call(tool_format, city=1, days=3))
    assert not held.takes(call(tool_format, days=3))
    assert not held.takes(call(tool_format, city="x", days=3, more=1))
    assert not held.takes(call(tool_format, city="x", days=3).replace("weather", "whether"))
    assert not held.takes("I can't.")


@pytest.mark.parametrize("tool_format", ["dsml-v4", "dsml-v4.1", "hermes", "mistral"])
def test_a_mark_is_its_token_and_not_its_spelling(tool_format: str) -> None:
    held = Held(tool_format, [WEATHER], choice=ToolChoice(REQUIRED))
    written = call(tool_format, city="x", days=3)
    assert held.takes(written)
    assert not held.takes(list(written.encode()))


def test_a_parameter_can_hold_no_mark() -> None:
    held = Held("dsml-v4", [WEATHER], choice=ToolChoice(REQUIRED))
    assert not held.takes(call("dsml-v4", city="a</｜DSML｜parameter>b", days=3))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_one_call_at_most_where_calls_are_not_parallel(tool_format: str) -> None:
    one = call(tool_format, city="x", days=3)
    two = {
        "hermes": f"{one}\n{one}",
        "llama3-json": f"{one}; {one}",
        "mistral": one.replace("]", "", 1)[:0] + one[:-1] + ", " + one[len("[TOOL_CALLS][") :],
    }.get(tool_format) or _twice(one)
    for mode in (REQUIRED, AUTO):
        several = Held(tool_format, [WEATHER], choice=ToolChoice(mode))
        single = Held(tool_format, [WEATHER], choice=ToolChoice(mode, parallel=False))
        assert several.takes(one)
        assert several.takes(two)
        assert single.takes(one)
        assert not single.takes(two)


def _twice(block: str) -> str:
    start, end = block.index("<｜DSML｜", 1), block.rindex("</｜DSML｜")
    return block[:start] + 2 * block[start:end] + block[end:]


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_strict_tool_holds_calls_and_leaves_text_free(tool_format: str) -> None:
    held = Held(tool_format, [WEATHER])
    assert held.takes("Just words, <b>no call</b>.")
    assert held.takes("")
    assert held.takes(call(tool_format, city="x", days=3))
    assert not held.takes(call(tool_format, city="x", days=4))
    if tool_format != "llama3-json":
        assert held.takes("Let me look. " + call(tool_format, city="x", days=3))
        assert not held.takes("Let me look. " + call(tool_format, city="x", days=4))


def test_tools_that_promise_nothing_leave_the_answer_free() -> None:
    assert Held("hermes", [NOTE]).constraint is None
    assert Held("hermes", [WEATHER], choice=ToolChoice(ToolChoiceMode.NONE)).constraint is None
    assert Held().constraint is None


@pytest.mark.parametrize("tool_format", FORMATS)
def test_only_chosen_tools_can_be_called(tool_format: str) -> None:
    other = replace(WEATHER, name="other")
    for mode in (REQUIRED, AUTO):
        held = Held(tool_format, [other, WEATHER], choice=ToolChoice(mode, names=("other",)))
        written = call(tool_format, city="x", days=3)
        assert held.takes(written.replace("weather", "other"))
        assert not held.takes(written)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_tool_that_is_not_strict_falls_back_where_its_schema_is_too_much(
    tool_format: str,
) -> None:
    held = Held(tool_format, [NOTE], choice=ToolChoice(REQUIRED))
    assert held.takes(call(tool_format, x=[1, {"a": None}]).replace("weather", "note"))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_no_parameters_mean_none(tool_format: str) -> None:
    held = Held(tool_format, [Tool("weather")], choice=ToolChoice(REQUIRED))
    empty = "\n" if tool_format == "dsml-v4.1" else arguments(tool_format)
    assert held.takes(CALLS[tool_format] % empty)
    assert not held.takes(call(tool_format, x=1))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_tools_and_a_shape_mean_one_of_the_two(tool_format: str) -> None:
    held = Held(tool_format, [WEATHER], shape=SHAPE)
    assert held.takes("7")
    assert held.takes(call(tool_format, city="x", days=3))
    assert not held.takes("8")
    assert not held.takes("words")


@pytest.mark.parametrize("tokens", [TOKENS, {"<|end|>": END}], ids=["token", "spelled"])
@pytest.mark.parametrize("stage", [AnswerStage.REASONING, AnswerStage.REASONING_CONTINUATION])
def test_thinking_is_free_and_the_shape_begins_at_its_end(
    stage: AnswerStage, tokens: dict[str, int]
) -> None:
    held = Held(stage=stage, shape=SHAPE, tokens=tokens)
    assert held.takes("Hm: 8, <think>, {\n</think>7")
    assert held.takes("</think>\n\n7")
    assert not held.takes("Hm</think>8")
    assert not held.takes("7")
    tools = Held("dsml-v4", [WEATHER], stage=stage, choice=ToolChoice(REQUIRED), tokens=tokens)
    assert tools.takes("Hm.</think>\n\n" + call("dsml-v4", city="x", days=3))
    assert not tools.takes("Hm.</think>words")


def test_no_held_call_slips_through_in_the_thinking() -> None:
    held = Held("hermes", [WEATHER], stage=AnswerStage.REASONING)
    written = call("hermes", city="x", days=3)
    assert held.takes("Hm.</think>" + written)
    assert not held.takes(f"Hm. {written}</think>")
    free = Held("hermes", [NOTE], stage=AnswerStage.REASONING, budget=500)
    assert free.takes(f"Hm. {written}</think>")


def test_a_spelled_end_of_thinking_ends_nothing_where_it_is_a_token() -> None:
    held = Held(stage=AnswerStage.REASONING, shape=SHAPE)
    assert held.takes([*b"a</think>b", TOKENS["</think>"], *b"7"])
    assert not held.takes([*b"a</think>7"])


def test_a_budget_ends_the_thinking() -> None:
    held = Held(stage=AnswerStage.REASONING, budget=3)
    assert held.takes([*b"abc", TOKENS["</think>"], *b"anything <tool_call>"])
    assert held.allowed_after(b"ab") > {*b"xyz\n", TOKENS["</think>"]}
    assert held.allowed_after(b"abc") == {TOKENS["</think>"]}
    assert Held(stage=AnswerStage.CONTENT, budget=3).constraint is None


@pytest.mark.parametrize("tokens", [TOKENS, {"<|end|>": END}], ids=["token", "spelled"])
def test_a_model_that_opens_its_thinking_itself_may_do_so(tokens: dict[str, int]) -> None:
    held = Held(shape=SHAPE, thinks=True, tokens=tokens)
    assert held.takes("7")
    assert held.takes("<think>\nHm.\n</think>\n\n7")
    assert not held.takes("Hm.</think>7")
    assert not held.takes("<think>Hm.")
    bounded = Held(thinks=True, budget=3, tokens=tokens)
    assert bounded.takes("<think>abc</think>Hello")
    assert bounded.takes("Hello, no thought at all")


def test_mistral_models_with_a_mark_of_arguments_write_it() -> None:
    written = '[TOOL_CALLS]weather[ARGS]{"city": "x", "days": 3}'
    for mode in (REQUIRED, AUTO):
        choice = ToolChoice(mode)
        held = Held("mistral", [WEATHER], choice=choice, tokens=EVERY_TOKEN)
        assert held.takes(2 * written)
        assert not held.takes(written.replace("3", "4"))
        single = Held(
            "mistral", [WEATHER], choice=replace(choice, parallel=False), tokens=EVERY_TOKEN
        )
        assert single.takes(written)
        assert not single.takes(2 * written)


def test_a_block_that_the_prompt_opened_is_gone_on_with() -> None:
    held = Held("dsml-v4.1", [WEATHER], choice=ToolChoice(REQUIRED), inside=True)
    written = call("dsml-v4.1", city="x", days=3)
    assert held.takes(written.removeprefix("<｜DSML｜ calls>\n"))
    assert not held.takes(written)


CUSTOM = Tool("weather", kind=ToolKind.CUSTOM, param="tools[0].format.definition")
LARK = ("lark", 'start: "add " NUM\nNUM: /[0-9]+/')


def test_custom_tools_are_held_to_their_grammar() -> None:
    for grammar in (LARK, ("regex", "add [0-9]+")):
        held = Held("dsml-v4", [replace(CUSTOM, grammar=grammar)], choice=ToolChoice(REQUIRED))
        assert held.warnings == ()
        assert held.takes(call("dsml-v4", input="add 12"))
        assert not held.takes(call("dsml-v4", input="add x"))
    free = Held("dsml-v4", [CUSTOM], choice=ToolChoice(REQUIRED))
    assert free.takes(call("dsml-v4", input="what\never </b>"))


def test_custom_tools_inside_of_json() -> None:
    regex = replace(CUSTOM, grammar=("regex", "add [0-9]+"))
    held = Held("hermes", [regex], choice=ToolChoice(REQUIRED))
    assert held.takes(call("hermes", input="add 12"))
    assert not held.takes(call("hermes", input="add x"))
    lark = Held("hermes", [replace(CUSTOM, grammar=LARK)], choice=ToolChoice(REQUIRED))
    assert lark.takes(call("hermes", input="add x"))
    assert lark.warnings == (
        "tools[0].format.definition: a grammar is not enforced in this model's call format",
    )


VALUES: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "string", "pattern": "[a-z]+"}, ["abc"], ["A", ""]),
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"anyOf": [{"type": "integer"}, {"const": "all"}]}, [3, "all"], ["any", None]),
    ({"enum": ["a", 1, None]}, ["a", 1, None], ["b", 2]),
    ({"type": "array", "items": {"$ref": "#/$defs/n"}}, [[1, 20], []], [[2], "x"]),
    ({"$ref": "#/$defs/n"}, [1, 20], [2, "1"]),
    ({"$ref": "#/$defs/tree"}, [{"in": [{"in": []}]}], [{"in": [1]}]),
    (True, ["x", 1, {"a": [None]}], []),
    ({}, ["x", 1, {"a": [None]}], []),
]


@pytest.mark.parametrize(("schema", "good", "bad"), VALUES)
@pytest.mark.parametrize("tool_format", ["hermes", "dsml-v4"])
def test_values_of_every_kind(
    tool_format: str, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    tree = {"type": "object", "properties": {"in": {"type": "array"}}, "required": ["in"]}
    tree["properties"]["in"]["items"] = {"$ref": "#/$defs/tree"}  # type: ignore[index]
    parameters = {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "$defs": {"n": {"enum": [1, 20]}, "tree": tree},
    }
    tool = Tool("weather", parameters=parameters, strict=True)
    held = Held(tool_format, [tool], choice=ToolChoice(REQUIRED))
    assert all(held.takes(call(tool_format, v=value)) for value in good)
    assert not any(held.takes(call(tool_format, v=value)) for value in bad)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"format": "date"}, "2024-02-29", "2024-02-31x"),
        ({"minLength": 2}, "ab", "a"),
        ({"maxLength": 3}, "äöü", "abcd"),
    ],
)
def test_a_string_that_only_json_can_hold_is_written_as_json(
    schema: dict[str, Any], good: str, bad: str
) -> None:
    parameters = {"properties": {"d": {"type": "string", **schema}}, "required": ["d"]}
    held = Held("dsml-v4", [Tool("weather", parameters=parameters, strict=True)])
    written = call("dsml-v4", d=good)
    as_json = written.replace(f'"true">{good}', f'"false">"{good}"')
    assert held.takes(as_json)
    assert not held.takes(as_json.replace(good, bad))
    assert not held.takes(written)


def test_a_mere_reference_is_followed() -> None:
    parameters = {"$ref": "#/$defs/a", "$defs": {"a": WEATHER.parameters, "days": {"const": 3}}}
    tool = Tool("weather", parameters=parameters, strict=True)
    held = Held("dsml-v4", [tool], choice=ToolChoice(REQUIRED))
    assert held.warnings == ()
    assert held.takes(call("dsml-v4", city="x", days=3))
    assert not held.takes(call("dsml-v4", city="x", days=1))
    assert not held.takes(call("dsml-v4", days=3))


def test_too_much_to_compile_is_held_to_what_was_promised() -> None:
    much = {"properties": {f"p{i}": {"enum": ["x" * 90, i]} for i in range(900)}}
    tools = [WEATHER, *(Tool(f"t{i}", parameters=much) for i in range(4))]
    held = Held("hermes", tools, choice=ToolChoice(REQUIRED))
    assert held.constraint is not None
    assert len(held.constraint.source) < 10_000
    assert not held.takes(call("hermes", city="x", days=4))


@pytest.mark.parametrize("strict", [True, False])
def test_a_hostile_schema_costs_little(strict: bool) -> None:
    """Branches of branches without end, and definitions that every parameter refers to."""
    levels = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 60} for i in range(9)}
    branches = {
        "properties": {"v": {"$ref": "#/$defs/a0"}},
        "$defs": {**levels, "a9": {"enum": []}},
    }
    item = {"type": "array", "items": {"$ref": "#/$defs/big"}}
    big = {
        "properties": {f"p{i}": item for i in range(2000)},
        "$defs": {"big": {"const": "x" * 100_000}},
    }
    began_s = time.process_time()
    for parameters in (branches, big):
        tool = Tool("weather", parameters=parameters, strict=strict)
        try:
            held = Held("dsml-v4", [tool], choice=ToolChoice(REQUIRED))
        except RequestRefused as refused:
            assert strict
            assert "too many references" in str(refused)
        else:
            assert held.constraint is not None
            assert len(held.constraint.source) < 2_000_000
    assert time.process_time() - began_s < 20


def test_what_this_call_format_does_not_enforce_is_said() -> None:
    tool = Tool("weather", parameters={"properties": {}, "minProperties": 1}, strict=True)
    held = Held("dsml-v4", [tool])
    assert held.warnings == (
        "tools[0]: keyword 'minProperties' is not enforced in this model's call format",
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"shape": SHAPE}, "response_format"),
        ({"tools": [WEATHER], "choice": ToolChoice(REQUIRED)}, "tool_choice"),
    ],
)
def test_a_begun_message_can_be_held_to_nothing(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        Held("hermes", stage=AnswerStage.CONTENT_CONTINUATION, **fields)
    assert [problem.param for problem in caught.value.problems] == [param]


def test_a_call_that_no_format_can_write_is_refused() -> None:
    with pytest.raises(RequestRefused, match="tool_choice"):
        Held("none", [WEATHER], choice=ToolChoice(REQUIRED))


def test_a_schema_nested_too_deeply_is_the_callers_fault() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(20_000):
        schema = {"type": "array", "items": schema}
    tool = Tool("weather", parameters={"properties": {"v": schema}}, strict=True)
    with pytest.raises(RequestRefused, match="nested too deeply"):
        Held("hermes", [tool])


def test_a_plain_shape_stays_as_it_is() -> None:
    assert Held(shape=SHAPE).constraint == SHAPE
    assert Held("hermes", shape=SHAPE).constraint == SHAPE


def test_an_error_inside_names_the_tool_it_came_from() -> None:
    held = Held("hermes", [NOTE, WEATHER], choice=ToolChoice(REQUIRED))
    assert held.constraint is not None
    source = held.constraint.source
    assert '"param": "tools[0].function.parameters"' in source
    assert '"param": "tools[0]", "fallback"' in source


CLOSING = ClosingVocabulary(TOKENIZER)
VOCABULARY = Vocabulary(
    tuple(TOKENIZER.decoded_vocab[:256]) + (b"",) * len(MARKS) + (b"</",),
    special={token: mark.encode() for mark, token in EVERY_TOKEN.items()},
    strips_first_space=False,
    added=TOKENS,
)


def ramble(held: Held, budget: int, seed: int) -> list[int]:
    """What a model writes that knows nothing: any allowed token, completed within the budget."""
    draw = np.random.default_rng(seed)
    state = GrammarState(held.compiled(), CLOSING)
    output: list[int] = []
    while len(output) < budget and END not in output:
        mask = np.full((1, -(-TOKENIZER.vocab_size // 32)), -1, np.int32)
        state.fill_mask(mask, 0)  # type: ignore[arg-type]
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[: TOKENIZER.vocab_size]
        drawn = int(draw.choice(np.flatnonzero(bits)))
        token = state.admit(drawn, budget - len(output) - 1)
        assert state.accept(token)
        output.append(token)
    assert find_way(state._matcher.fork(), CLOSING) == []
    return [token for token in output if token != END]


@pytest.mark.parametrize("stage", [AnswerStage.CONTENT, AnswerStage.REASONING])
@pytest.mark.parametrize("tool_format", FORMATS)
def test_whatever_is_drawn_the_reader_finds_calls_that_fit(
    tool_format: str, stage: AnswerStage
) -> None:
    patch = replace(CUSTOM, name="patch", grammar=("regex", "add [0-9]{1,3}"))
    tools = [WEATHER, replace(WEATHER, name="other"), patch]
    held = Held(tool_format, tools, stage=stage, choice=ToolChoice(REQUIRED))
    plan = AnswerPlan(
        stage=stage,
        reasoning_marks=("<think>", "</think>"),
        tool_format=tool_format,
        tools={tool.name: tool for tool in tools},
    )
    for seed in range(8):
        reader = AnswerReader(VOCABULARY, plan)
        output = ramble(held, 400, seed)
        events = [*reader.feed(output), *reader.finish(FinishReason.STOP)]
        calls = [event for event in events if isinstance(event, ToolCallEnded)]
        began = [event for event in events if isinstance(event, ToolCallBegan)]
        assert len(calls) == len(began) >= 1
        for begin, call in zip(began, calls, strict=True):
            assert call.problem is None
            if begin.is_custom:
                assert re.fullmatch("add [0-9]{1,3}", call.arguments)
            else:
                jsonschema.validate(json.loads(call.arguments), dict(WEATHER.parameters))
        assert reader.finish_reason is FinishReason.TOOL_CALLS
