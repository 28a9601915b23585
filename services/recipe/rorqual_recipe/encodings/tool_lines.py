"""Declared tools as models read them: one JSON object a line."""

from collections.abc import Iterable, Mapping
from typing import Any

from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.profile import FunctionText

CUSTOM_INPUT = "input"


def joined_name(namespace: str, name: str, joiner: str) -> str:
    """The one name a model knows a tool by."""
    return f"{namespace}{joiner}{name}" if namespace else name


def by_printed_name(tools: Iterable[Tool], joiner: str) -> dict[str, Tool]:
    """Tools under the names they are printed with; of two equal names the first counts."""
    named: dict[str, Tool] = {}
    for tool in tools:
        named.setdefault(joined_name(tool.namespace, tool.name, joiner), tool)
    return named


def tool_function(
    name: str, tool: Tool, taught: Mapping[str, FunctionText], *, with_group: bool
) -> dict[str, Any]:
    """Name, description and parameters of a tool as the model shall read them.

    taught: texts of custom tools that the model was trained with. with_group: the namespace's
    description stands before the tool's own.
    """
    if tool.kind is ToolKind.CUSTOM:
        text = taught.get(tool.name) or custom_as_function(tool)
        return {"name": name, "description": text.description, "parameters": text.parameters}
    description = tool.description
    if tool.namespace_description and with_group:
        description = f"{tool.namespace_description}\n{description}"
    return {"name": name, "description": description, "parameters": tool.parameters}


def custom_as_function(tool: Tool) -> FunctionText:
    """A tool that takes free text, as a function of one string."""
    description = tool.description
    if tool.grammar is not None:
        syntax, definition = tool.grammar
        rule = f"`{CUSTOM_INPUT}` must match this {syntax} grammar:\n{definition}"
        description = f"{description}\n\n{rule}" if description else rule
    return FunctionText(
        description=description,
        parameters={
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string"}},
            "required": [CUSTOM_INPUT],
        },
    )
