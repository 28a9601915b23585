"""Tools of the Messages API, and what the answer may do with them."""

from collections.abc import Sequence
from typing import Any

from rorqual_recipe.conversation import Tool, ToolChoice, ToolChoiceMode
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.messages.schema import ToolBody, ToolChoiceBody
from rorqual_recipe.protocols.notes import Notes

MAX_TOOLS = 1024
_WEB_SEARCH = "web_search_"
_MODES = {
    "auto": ToolChoiceMode.AUTO,
    "any": ToolChoiceMode.REQUIRED,
    "tool": ToolChoiceMode.REQUIRED,
    "none": ToolChoiceMode.NONE,
}


class ToolReader:
    """Reads the tools of one body."""

    def __init__(self, notes: Notes, *, drop_server_tools: bool) -> None:
        self._notes = notes
        self._drop_server_tools = drop_server_tools

    def tools(self, raw_tools: Sequence[Any] | None) -> dict[str, Tool]:
        """Valid tools by name, in the client's order."""
        found: dict[str, Tool] = {}
        if len(raw_tools or ()) > MAX_TOOLS:
            self._notes.problem("tools", f"at most {MAX_TOOLS} tools")
            return found
        for index, raw in enumerate(raw_tools or ()):
            tool = self._tool(f"tools[{index}]", raw)
            if tool is None:
                continue
            if tool.name in found:
                self._notes.problem(f"tools[{index}].name", f"{tool.name!r} is there already")
            found[tool.name] = tool
        if found and all(tool.deferred for tool in found.values()):
            self._notes.problem("tools", "at least one tool must not have defer_loading")
        return found

    def choice(self, wish: ToolChoiceBody | None, names: Sequence[str]) -> ToolChoice:
        """What the answer may call, out of the tools of these names."""
        if wish is None:
            return ToolChoice()
        if wish.type in ("any", "tool") and not names:
            self._notes.problem("tool_choice", f"type {wish.type} needs tools")
        chosen: tuple[str, ...] = ()
        if wish.type == "tool" and wish.name is None:
            self._notes.problem("tool_choice.name", "field required with type tool")
        elif wish.type == "tool" and wish.name is not None:
            chosen = (wish.name,)
            if names and wish.name not in names:
                reason = f"{clip(wish.name, 128)!r} is not among the tools"
                self._notes.problem("tool_choice.name", reason)
        return ToolChoice(_MODES[wish.type], chosen, parallel=not wish.disable_parallel_tool_use)

    def _tool(self, path: str, raw: Any) -> Tool | None:
        kind = raw.get("type") if isinstance(raw, dict) else None
        if isinstance(kind, str) and kind != "custom":
            self._server_tool(path, kind)
            return None
        body = self._notes.typed(ToolBody, raw, path)
        if body is None:
            return None
        if body.allowed_callers not in (None, ["direct"]):
            self._notes.warn(f"{path}.allowed_callers", "only the model calls tools")
        if body.input_schema.get("type") != "object":
            self._notes.problem(f"{path}.input_schema.type", "must be 'object'")
        else:
            self._notes.problems += schema_problems(body.input_schema, f"{path}.input_schema")
        return Tool(
            name=body.name,
            description=body.description or "",
            parameters=body.input_schema,
            strict=bool(body.strict),
            deferred=bool(body.defer_loading),
            param=f"{path}.input_schema",
        )

    def _server_tool(self, path: str, kind: str) -> None:
        if self._drop_server_tools and kind.startswith(_WEB_SEARCH):
            self._notes.warn(path, f"{kind} was left out, it does not run here")
            return
        reason = f"{clip(kind, 64)!r} does not run here; declare a tool with an input_schema"
        self._notes.unsupported(f"{path}.type", reason)
