"""From a conversation and its prompt to the one constraint that decode enforces.

Thinking stays free; the rest begins at the token that ends it. Of what follows, a call that must be
made outranks the shape of the answer; where both are open, either is taken. Calls that may be made
are held to a shape only where a promise was given: a strict tool, a choice of tools, one call at
most. Everything else the model writes as it likes, and the reader of the answer checks it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

from rorqual_recipe.constraints import dsml_calls, json_calls
from rorqual_recipe.constraints.tags import (
    ANY_OBJECT,
    Format,
    any_of,
    free_text,
    json_value,
    optional,
    regex,
    sequence,
    spelled,
    text,
)
from rorqual_recipe.constraints.tool_schema import CallableTool
from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    OutputConstraint,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)
from rorqual_recipe.encodings.base import AnswerStage, RenderedPrompt
from rorqual_recipe.problems import RequestRefused, unsupported

_BREAK = "\n\n"
"""What models put between thinking and answer; the reader drops it."""


class CallFormat(Protocol):
    """How one family of models writes calls. mark: how they begin inside of text, "" = nowhere."""

    @property
    def mark(self) -> str: ...

    def block(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format: ...

    def in_text(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format: ...

    def warnings(self, tools: Sequence[CallableTool]) -> list[str]: ...


CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": json_calls.HERMES,
    "llama3-json": json_calls.LLAMA3,
    "mistral": json_calls.MISTRAL,
    "dsml-v4": dsml_calls.V4,
    "dsml-v4.1": dsml_calls.V41,
}


_MAX_SOURCE_CHARS = 200_000
"""Above it schemas of tools that are not strict are left out; the grammar service takes a little
more."""


def answer_constraint(
    conversation: Conversation, prompt: RenderedPrompt, tokens: Mapping[str, int]
) -> tuple[OutputConstraint | None, tuple[str, ...]]:
    """The constraint, None for a free answer, and warnings for what it leaves out.

    tokens: added vocabulary, id by spelling. A mark that is in it is enforced as that token.
    Raises: RequestRefused for a wish that no constraint can make true.
    """
    try:
        return _Answer(conversation, prompt, tokens).constraint()
    except RecursionError:
        message = "a schema is nested too deeply to be enforced"
        raise RequestRefused([unsupported(_blamed(conversation), message)]) from None


class _Answer:
    def __init__(
        self, conversation: Conversation, prompt: RenderedPrompt, tokens: Mapping[str, int]
    ) -> None:
        self._choice = conversation.tool_choice
        self._shape = conversation.response_format
        self._budget = conversation.thinking.budget_tokens
        self._prompt = prompt
        self._tokens = tokens
        self._calls = CALL_FORMATS.get(prompt.tool_format)
        self._tools = _callable_tools(conversation, prompt) if self._calls else []
        self._warnings: list[str] = []

    def constraint(self) -> tuple[OutputConstraint | None, tuple[str, ...]]:
        self._refuse_the_impossible()
        body = self._body()
        whole = self._after_thinking(body)
        if whole is None:
            return None, tuple(self._warnings)
        if whole is body and not self._tools:
            return self._shape, tuple(self._warnings)
        tag = _tag(whole)
        if len(tag.source) > _MAX_SOURCE_CHARS and any(tool.is_optional for tool in self._tools):
            self._tools = [tool.relaxed() for tool in self._tools]
            self._warnings.clear()
            return self.constraint()
        return tag, tuple(self._warnings)

    def _refuse_the_impossible(self) -> None:
        is_required = self._choice.mode is ToolChoiceMode.REQUIRED
        if is_required and not self._tools:
            message = "this model can't be made to call one of these tools"
            raise RequestRefused([unsupported("tool_choice", message)])
        if self._prompt.stage is not AnswerStage.CONTENT_CONTINUATION:
            return
        message = "can't be enforced on an answer that continues a begun message"
        if self._shape is not None:
            param = self._shape.param or "response_format"
            raise RequestRefused([unsupported(param, message)])
        if is_required:
            raise RequestRefused([unsupported("tool_choice", message)])

    def _body(self) -> Format | None:
        """What follows the thinking; None when that is free."""
        shape = None if self._shape is None else _shape(self._shape)
        if self._calls is None or not self._tools:
            return None if shape is None else self._led(shape)
        if self._choice.mode is ToolChoiceMode.REQUIRED:
            return self._required_calls(self._calls)
        several, has_promise = self._choice.parallel, any(t.has_promise for t in self._tools)
        if shape is None and several and not self._choice.names and not has_promise:
            return None
        self._warnings += self._calls.warnings(self._tools)
        if shape is None:
            return self._calls.in_text(self._tools, self._tokens, several=several)
        block = self._calls.block(self._tools, self._tokens, several=several)
        return self._led(any_of([block, shape]))

    def _required_calls(self, calls: CallFormat) -> Format:
        self._warnings += calls.warnings(self._tools)
        several = self._choice.parallel
        if self._prompt.starts_in_tool_calls and isinstance(calls, dsml_calls.DsmlCalls):
            return calls.inside_block(self._tools, self._tokens, several=several)
        return self._led(calls.block(self._tools, self._tokens, several=several))

    @property
    def _may_think(self) -> bool:
        """The answer may begin with reasoning, opened by the prompt or by the model itself."""
        stage, prompt = self._prompt.stage, self._prompt
        opens = stage is AnswerStage.CONTENT and prompt.thinks and not prompt.starts_in_tool_calls
        return (stage.thinks or opens) and prompt.reasoning_marks is not None

    def _after_thinking(self, body: Format | None) -> Format | None:
        """Thinking and then the body; None when nothing of it is held to anything."""
        if not self._may_think or self._prompt.reasoning_marks is None:
            return body
        if body is None and self._budget is None:
            return None
        opening, close = self._prompt.reasoning_marks
        # A call that is held to something must not slip through in the thinking.
        mark = self._calls.mark if self._calls is not None and body is not None else ""
        bound = {} if self._budget is None else {"max_tokens": self._budget}
        thought = sequence(
            {**self._anything_but(close, mark), **bound}, spelled(close, self._tokens)
        )
        if not self._prompt.stage.thinks:
            thought = optional(sequence(spelled(opening, self._tokens), thought))
        return sequence(thought, body or self._anything_but(opening))

    def _anything_but(self, *marks: str) -> Format:
        """Free text without the marks: tokens where the first is one, else letters."""
        if marks[0] not in self._tokens:
            return free_text(*filter(None, marks))
        excluded = [self._tokens[mark] for mark in marks if mark in self._tokens]
        return {"type": "any_tokens", "exclude_tokens": excluded}

    def _led(self, content: Format) -> Format:
        """Content that may begin with a break where thinking stands before it."""
        return sequence(optional(text(_BREAK)), content) if self._may_think else content


def _blamed(conversation: Conversation) -> str:
    shape = conversation.response_format
    return "tools" if shape is None else shape.param or "response_format"


def _tag(content: Format) -> OutputConstraint:
    source = json.dumps({"type": "structural_tag", "format": content}, ensure_ascii=False)
    return OutputConstraint(ConstraintKind.STRUCTURAL_TAG, source)


def _shape(shape: OutputConstraint) -> Format:
    match shape.kind:
        case ConstraintKind.JSON_OBJECT:
            return json_value(dict(ANY_OBJECT), shape.param)
        case ConstraintKind.JSON_SCHEMA:
            return json_value(json.loads(shape.source), shape.param)
        case ConstraintKind.REGEX:
            return regex(shape.source, shape.param)
        case ConstraintKind.EBNF:
            return {"type": "grammar", "grammar": shape.source, "param": shape.param}
        case ConstraintKind.STRUCTURAL_TAG:
            content: Format = json.loads(shape.source)["format"]
            return content


def _callable_tools(conversation: Conversation, prompt: RenderedPrompt) -> list[CallableTool]:
    choice = conversation.tool_choice
    if choice.mode is ToolChoiceMode.NONE:
        return []
    is_required = choice.mode is ToolChoiceMode.REQUIRED
    places = {id(tool): f"tools[{index}]" for index, tool in enumerate(conversation.tools)}
    return [
        CallableTool(
            name=name,
            tool=tool,
            param=tool.param or places.get(id(tool), "tools"),
            is_held=tool.strict or is_required,
        )
        for name, tool in prompt.tools.items()
        if _is_chosen(name, tool, choice)
    ]


def _is_chosen(printed_name: str, tool: Tool, choice: ToolChoice) -> bool:
    own_name = f"{tool.namespace}::{tool.name}" if tool.namespace else tool.name
    return not choice.names or printed_name in choice.names or own_name in choice.names
