"""`tool_choice` in all of its forms."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from rorqual_recipe.conversation import Tool, ToolChoice, ToolChoiceMode
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.responses.schema import OPEN
from rorqual_recipe.protocols.responses.tools import (
    APPLY_PATCH,
    MAX_TOOLS,
    SERVER_TYPES,
    TOOL_SEARCH,
    WEB_SEARCH_TYPES,
    DeclaredTools,
    full_name,
)

_MODES = {mode.value: mode for mode in ToolChoiceMode}


class NamedChoice(BaseModel):
    """One tool by name; `ns::f` or a namespace beside the name."""

    model_config = OPEN

    type: str
    name: str
    namespace: str | None = None


class AllowedTools(BaseModel):
    """Some of the declared tools."""

    model_config = OPEN

    type: str
    mode: Literal["auto", "required"]
    tools: list[Any] = Field(min_length=1, max_length=MAX_TOOLS)


class ToolChoiceReader:
    """Reads a tool choice against the tools that are declared."""

    def __init__(self, notes: Notes, declared: DeclaredTools, *, parallel: bool) -> None:
        self._notes = notes
        self._declared = declared
        self._parallel = parallel
        self._names: dict[str, str] = {}
        for tool in declared.tools:
            for spelling in _spellings(tool):
                self._names.setdefault(spelling, full_name(tool))

    def read(self, choice: Any) -> ToolChoice:
        """What the answer may call; what is wrong with the wish is noted."""
        if choice is None:
            return self._choice(ToolChoiceMode.AUTO)
        if isinstance(choice, str):
            return self._word(choice)
        kind = choice.get("type") if isinstance(choice, dict) else None
        if not isinstance(choice, dict):
            self._notes.problem("tool_choice", "must be none, auto, required or an object")
        elif not isinstance(kind, str):
            self._notes.problem("tool_choice.type", "must be a string")
        elif kind in WEB_SEARCH_TYPES:
            self._notes.warn("tool_choice", "there is no web search here; taken as auto")
        elif kind in SERVER_TYPES:
            self._notes.unsupported("tool_choice.type", f"{kind} is not supported")
        elif kind == "allowed_tools":
            return self._allowed(choice)
        elif kind in (APPLY_PATCH, TOOL_SEARCH):
            return self._required([self._resolve(kind, None, "tool_choice")])
        elif kind in ("function", "custom"):
            return self._required([self._named(choice, "tool_choice")])
        else:
            self._notes.problem("tool_choice.type", f"unknown type {clip(kind, 64)!r}")
        return self._choice(ToolChoiceMode.AUTO)

    def _word(self, word: str) -> ToolChoice:
        mode = _MODES.get(word)
        if mode is None:
            self._notes.problem("tool_choice", "must be none, auto, required or an object")
            return self._choice(ToolChoiceMode.AUTO)
        if mode is ToolChoiceMode.REQUIRED and not self._declared.tools:
            self._notes.problem("tool_choice", "required needs tools")
        return self._choice(mode)

    def _allowed(self, choice: Any) -> ToolChoice:
        found = self._notes.typed(AllowedTools, choice, "tool_choice")
        if found is None:
            return self._choice(ToolChoiceMode.AUTO)
        names = [
            self._listed(entry, f"tool_choice.tools[{index}]")
            for index, entry in enumerate(found.tools)
        ]
        known = [name for name in names if name is not None]
        return self._choice(_MODES[found.mode] if known else ToolChoiceMode.NONE, known)

    def _listed(self, entry: Any, path: str) -> str | None:
        kind = entry.get("type") if isinstance(entry, dict) else None
        if kind in WEB_SEARCH_TYPES:
            self._notes.warn(path, "there is no web search here; left out")
            return None
        if kind in (APPLY_PATCH, TOOL_SEARCH):
            return self._resolve(str(kind), None, path)
        if kind in SERVER_TYPES:
            self._notes.unsupported(f"{path}.type", f"{kind} is not supported")
            return None
        return self._named(entry, path)

    def _named(self, entry: Any, path: str) -> str | None:
        found = self._notes.typed(NamedChoice, entry, path)
        return self._resolve(found.name, found.namespace, f"{path}.name") if found else None

    def _resolve(self, name: str, namespace: str | None, path: str) -> str | None:
        found = self._names.get(f"{namespace}::{name}" if namespace else name)
        if found is None:
            self._notes.problem(path, f"no tool {clip(name, 128)!r} is declared in tools")
        return found

    def _required(self, names: Sequence[str | None]) -> ToolChoice:
        known = [name for name in names if name is not None]
        return self._choice(ToolChoiceMode.REQUIRED, known)

    def _choice(self, mode: ToolChoiceMode, names: Sequence[str] = ()) -> ToolChoice:
        return ToolChoice(mode, tuple(dict.fromkeys(names)), self._parallel)


def _spellings(tool: Tool) -> tuple[str, ...]:
    if not tool.namespace:
        return (tool.name,)
    return (f"{tool.namespace}::{tool.name}", f"{tool.namespace}__{tool.name}")
