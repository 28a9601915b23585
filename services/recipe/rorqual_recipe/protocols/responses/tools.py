"""Declared tools: functions, namespaces of them, custom tools, tool search."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.problems import clip
from rorqual_recipe.protocols.json_schema import schema_problems
from rorqual_recipe.protocols.notes import Notes
from rorqual_recipe.protocols.responses.tool_schema import (
    CustomTool,
    FunctionTool,
    GrammarFormat,
    NamespaceTool,
    ToolSearchTool,
)

MAX_TOOLS = 1024
MAX_TOOLS_READ = 16 * MAX_TOOLS
"""Of one request, those that its items declare included."""
TOOL_SEARCH = "tool_search"
APPLY_PATCH = "apply_patch"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
WEB_SEARCH_TYPES = frozenset(
    {
        *("web_search", "web_search_2025_08_26", "web_search_preview"),
        "web_search_preview_2025_03_11",
    }
)
SERVER_TYPES = frozenset(
    {
        *("file_search", "computer", "computer_use", "computer_use_preview", "code_interpreter"),
        *("image_generation", "local_shell", "shell", "mcp", "programmatic_tool_calling"),
    }
)


@dataclass(slots=True)
class DeclaredTools:
    """tools: in the order of the body. searches_tools: `tool_search` is among them."""

    tools: list[Tool] = field(default_factory=list)
    searches_tools: bool = False


class ToolReader:
    """Reads the tools of one request, wherever they are declared."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._readers: dict[str, Callable[[Any, str], Iterator[Tool]]] = {
            "function": self._function,
            "custom": self._custom,
            "namespace": self._namespace,
            "apply_patch": self._apply_patch,
            "tool_search": self._tool_search,
        }
        self.declared = DeclaredTools()
        self._known: set[str] = set()
        self._num_left = MAX_TOOLS_READ

    def _read(self, tools: Any, path: str) -> list[tuple[str, Tool]]:
        """The tools and where they are; what is wrong with them is noted."""
        if tools is None:
            return []
        if not isinstance(tools, list):
            self._notes.problem(path, "must be a list of tools")
            return []
        if len(tools) > MAX_TOOLS:
            self._notes.problem(path, f"at most {MAX_TOOLS} tools")
            return []
        placed = ((f"{path}[{index}]", tool) for index, tool in enumerate(tools))
        found = ((where, each) for where, tool in placed for each in self._tool(tool, where))
        taken = list(islice(found, self._num_left + 1))
        self._num_left -= len(taken)
        if self._num_left < 0:
            self._notes.problem(path, f"at most {MAX_TOOLS_READ} tools in one request")
            self._num_left = 0
        return taken

    def declare(self, tools: Any) -> DeclaredTools:
        """The request's own tools; every name must be unique among them."""
        for path, tool in self._read(tools, "tools"):
            name = full_name(tool)
            if name in self._known:
                self._notes.problem(f"{path}.name", f"tool names must be unique: {name!r}")
            self._declare(tool)
        return self.declared

    def learn(self, tools: Any, path: str) -> tuple[Tool, ...]:
        """Tools that a message declares; they are known from then on."""
        learned = tuple(replace(tool, deferred=True) for _, tool in self._read(tools, path))
        for tool in learned:
            if full_name(tool) not in self._known:
                self._declare(tool)
        return learned

    def _declare(self, tool: Tool) -> None:
        self._known.add(full_name(tool))
        self.declared.tools.append(tool)

    def _tool(self, tool: Any, path: str) -> Iterator[Tool]:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            self._notes.problem(
                f"{path}.type" if isinstance(tool, dict) else path,
                "field required" if isinstance(tool, dict) else "must be an object",
            )
        elif kind in self._readers:
            yield from self._readers[kind](tool, path)
        elif kind in WEB_SEARCH_TYPES:
            self._notes.warn(path, "there is no web search here; the tool is left out")
        elif kind in SERVER_TYPES:
            self._notes.unsupported(f"{path}.type", f"tools of type {kind} are not supported")
        else:
            self._notes.problem(f"{path}.type", f"unknown tool type {clip(kind, 64)!r}")

    def _function(self, tool: Any, path: str) -> Iterator[Tool]:
        found = self._notes.typed(FunctionTool, tool, path)
        if found is None or not self._good_name(found.name, f"{path}.name"):
            return
        parameters = self._parameters(found.parameters, f"{path}.parameters")
        self._warn_callers(found, path)
        if found.output_schema is not None:
            self._notes.warn(f"{path}.output_schema", "not shown to the model")
        yield Tool(
            name=found.name,
            description=found.description or "",
            parameters=parameters,
            strict=bool(found.strict),
            param=f"{path}.parameters",
        )

    def _parameters(self, schema: dict[str, Any] | None, path: str) -> dict[str, Any]:
        if not schema:
            return {}
        if schema.get("type") != "object":
            self._notes.problem(f"{path}.type", 'must be "object"')
        self._notes.problems += schema_problems(schema, path)
        return schema

    def _custom(self, tool: Any, path: str) -> Iterator[Tool]:
        found = self._notes.typed(CustomTool, tool, path)
        if found is None or not self._good_name(found.name, f"{path}.name"):
            return
        self._warn_callers(found, path)
        yield Tool(
            name=found.name,
            description=found.description or "",
            kind=ToolKind.CUSTOM,
            grammar=self._grammar(found.format, f"{path}.format"),
            param=f"{path}.format.definition",
        )

    def _grammar(self, shape: GrammarFormat | None, path: str) -> tuple[str, str] | None:
        if shape is None or shape.type == "text":
            return None
        if shape.syntax is None or not shape.definition:
            missing = "definition" if shape.syntax else "syntax"
            self._notes.problem(f"{path}.{missing}", "field required with type grammar")
            return None
        return shape.syntax, shape.definition

    def _namespace(self, tool: Any, path: str) -> Iterator[Tool]:
        found = self._notes.typed(NamespaceTool, tool, path)
        if found is None or not self._good_name(found.name, f"{path}.name"):
            return
        for index, inner in enumerate(found.tools):
            inner_path = f"{path}.tools[{index}]"
            kind = inner.get("type") if isinstance(inner, dict) else None
            if kind not in ("function", "custom"):
                where = f"{inner_path}.type" if isinstance(inner, dict) else inner_path
                self._notes.problem(where, "a namespace holds function and custom tools")
                continue
            for each in self._readers[str(kind)](inner, inner_path):
                yield replace(
                    each, namespace=found.name, namespace_description=found.description or ""
                )

    def _apply_patch(self, tool: Any, path: str) -> Iterator[Tool]:
        self._notes.warn(path, "declared as the custom tool apply_patch; calls are custom calls")
        yield Tool(name=APPLY_PATCH, kind=ToolKind.CUSTOM, param=path)

    def _tool_search(self, tool: Any, path: str) -> Iterator[Tool]:
        found = self._notes.typed(ToolSearchTool, tool, path)
        if found is None:
            return
        if found.execution != "client":
            self._notes.warn(path, "tools are not searched here; all of them are shown at once")
            return
        self.declared.searches_tools = True
        yield Tool(
            name=TOOL_SEARCH,
            description=found.description or "",
            parameters=self._parameters(found.parameters, f"{path}.parameters"),
            param=f"{path}.parameters",
        )

    def _good_name(self, name: str, path: str) -> bool:
        if _NAME.fullmatch(name):
            return True
        self._notes.problem(path, "must be 1 to 128 letters, digits, `_` or `-`")
        return False

    def _warn_callers(self, found: FunctionTool | CustomTool, path: str) -> None:
        if found.defer_loading:
            self._notes.warn(f"{path}.defer_loading", "ignored, the tool is shown at once")
        if found.allowed_callers not in (None, ["direct"]):
            self._notes.warn(f"{path}.allowed_callers", "ignored, only the model calls tools")


def full_name(tool: Tool) -> str:
    """`name`, or `namespace::name`."""
    return f"{tool.namespace}::{tool.name}" if tool.namespace else tool.name
