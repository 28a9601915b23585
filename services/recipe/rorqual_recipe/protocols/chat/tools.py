"""Declared tools of Chat Completions, and which of them the answer may or must call."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field

from rorqual_recipe.conversation import Tool, ToolChoice, ToolChoiceMode, ToolKind
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.chat.schema import (
    MAX_TOOLS,
    OPEN,
    ChatRequest,
    CustomBody,
    FunctionBody,
    ToolBody,
)
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.notes import Notes

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MODES = {mode.value: mode for mode in ToolChoiceMode}


class NameOnly(BaseModel):
    """`function` or `custom` of a choice."""

    model_config = OPEN

    name: str


class NamedTool(BaseModel):
    """One tool by name."""

    model_config = OPEN

    type: Literal["function", "custom"]
    function: NameOnly | None = None
    custom: NameOnly | None = None


class AllowedTools(BaseModel):
    """`allowed_tools` of a choice: some of the declared tools."""

    model_config = OPEN

    mode: Literal["auto", "required"]
    tools: list[Any] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(BaseModel):
    """A choice of type `allowed_tools`."""

    model_config = OPEN

    type: str
    allowed_tools: AllowedTools


class ToolReader:
    """Reads `tools` and `functions`; what is wrong with them is noted."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._seen: set[str] = set()

    def read(self, request: ChatRequest) -> tuple[Tool, ...]:
        """All declared tools. An empty list is as good as none: clients send it without thought."""
        if request.tools and request.functions:
            self._notes.problem("functions", "must not be given beside tools")
        tools = [
            found
            for index, raw in enumerate(request.tools or ())
            for found in self._tool(raw, f"tools[{index}]")
        ]
        for index, raw in enumerate(request.functions or ()):
            body = self._notes.typed(FunctionBody, raw, f"functions[{index}]")
            tools += self._function(body, f"functions[{index}]") if body else ()
        return tuple(tools)

    def _tool(self, raw: Any, path: str) -> Iterator[Tool]:
        body = self._notes.typed(ToolBody, raw, path)
        if body is None:
            return
        if body.type == "custom" and body.custom is not None:
            yield from self._custom(body.custom, f"{path}.custom")
        elif body.type == "function" and body.function is not None:
            yield from self._function(body.function, f"{path}.function")
        else:
            self._notes.problem(f"{path}.{body.type}", f"field required with type {body.type}")

    def _function(self, body: FunctionBody, path: str) -> Iterator[Tool]:
        parameters = self._parameters(body.parameters, f"{path}.parameters")
        if self._good_name(body.name, f"{path}.name") and parameters is not None:
            yield Tool(
                name=body.name,
                description=body.description or "",
                parameters=parameters,
                strict=bool(body.strict),
                param=f"{path}.parameters",
            )

    def _parameters(self, parameters: Any, path: str) -> dict[str, Any] | None:
        if parameters is None:
            return {}
        if not isinstance(parameters, dict):
            self._notes.problem(path, "must be a JSON Schema object")
            return None
        problems = list(schema_problems(parameters, path))
        if parameters.get("type") != "object":
            self._notes.problem(f"{path}.type", 'must be "object"')
        self._notes.problems += problems
        return parameters

    def _custom(self, body: CustomBody, path: str) -> Iterator[Tool]:
        grammar = None
        if body.format is not None and body.format.type == "grammar":
            if body.format.grammar is None:
                self._notes.problem(f"{path}.format.grammar", "field required with type grammar")
                return
            grammar = (body.format.grammar.syntax, body.format.grammar.definition)
        if self._good_name(body.name, f"{path}.name"):
            yield Tool(
                name=body.name,
                description=body.description or "",
                kind=ToolKind.CUSTOM,
                grammar=grammar,
                param=f"{path}.format.grammar.definition",
            )

    def _good_name(self, name: str, path: str) -> bool:
        if not _NAME.fullmatch(name):
            self._notes.problem(path, "must be 1 to 128 letters, digits, `_` or `-`")
            return False
        if name in self._seen:
            self._notes.problem(path, f"tool names must be unique: {name!r}")
        self._seen.add(name)
        return True


class ToolChoiceReader:
    """Reads `tool_choice` and `function_call` against the tools that are declared."""

    def __init__(self, notes: Notes, tools: tuple[Tool, ...], request: ChatRequest) -> None:
        self._notes = notes
        self._names = {tool.name for tool in tools}
        self._declares_some = bool(request.tools or request.functions)
        is_legacy = bool(request.functions)  # its answers have room for one call
        self._parallel = request.parallel_tool_calls is not False and not is_legacy

    def read(self, request: ChatRequest) -> ToolChoice:
        """What the answer may call; what is wrong with the wish is noted."""
        if request.tool_choice is None:
            return self._legacy(request.function_call)
        return self._read(request.tool_choice)

    def _read(self, choice: Any) -> ToolChoice:
        if isinstance(choice, str):
            return self._word(choice, "tool_choice")
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind in ("function", "custom"):
            return self._choice(ToolChoiceMode.REQUIRED, [self._named(choice, "tool_choice")])
        if kind == "allowed_tools":
            return self._allowed(choice)
        if isinstance(kind, str):
            self._notes.problem("tool_choice.type", f"unknown type {clip(kind, 64)!r}")
        elif isinstance(choice, dict):
            self._notes.problem("tool_choice.type", "must be a string")
        else:
            self._notes.problem("tool_choice", "must be none, auto, required or an object")
        return self._choice(ToolChoiceMode.AUTO)

    def _legacy(self, choice: Any) -> ToolChoice:
        if choice is None:
            return self._choice(ToolChoiceMode.AUTO)
        if isinstance(choice, str) and choice != "required":
            return self._word(choice, "function_call")
        found = self._notes.typed(NameOnly, choice, "function_call")
        names = [self._known(found.name, "function_call.name")] if found else []
        return self._choice(ToolChoiceMode.REQUIRED, names)

    def _word(self, word: str, path: str) -> ToolChoice:
        mode = _MODES.get(word)
        if mode is None:
            self._notes.problem(path, "must be none, auto, required or an object")
        elif mode is ToolChoiceMode.REQUIRED and not self._declares_some:
            self._notes.problem(path, "required needs tools")
        return self._choice(mode or ToolChoiceMode.AUTO)

    def _allowed(self, choice: Any) -> ToolChoice:
        found = self._notes.typed(AllowedChoice, choice, "tool_choice")
        if found is None:
            return self._choice(ToolChoiceMode.AUTO)
        names = [
            self._named(entry, f"tool_choice.allowed_tools.tools[{index}]")
            for index, entry in enumerate(found.allowed_tools.tools)
        ]
        return self._choice(_MODES[found.allowed_tools.mode], names)

    def _named(self, entry: Any, path: str) -> str | None:
        found = self._notes.typed(NamedTool, entry, path)
        if found is None:
            return None
        named = found.function if found.type == "function" else found.custom
        if named is None:
            self._notes.problem(f"{path}.{found.type}", f"field required with type {found.type}")
            return None
        return self._known(named.name, f"{path}.{found.type}.name")

    def _known(self, name: str, path: str) -> str | None:
        if name in self._names:
            return name
        self._notes.problem(path, f"no tool {clip(name, 128)!r} is declared in tools")
        return None

    def _choice(self, mode: ToolChoiceMode, names: list[str | None] | None = None) -> ToolChoice:
        known = dict.fromkeys(name for name in names or () if name is not None)
        return ToolChoice(mode, tuple(known), self._parallel)
