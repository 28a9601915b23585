"""Tools and calls as values for a chat template, or as text where a template has no place for them.

The text form is that of the `hermes` format: one JSON object a call between <tool_call> tags.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rorqual_recipe.conversation import Conversation, Tool, ToolCall, ToolChoiceMode, ToolKind
from rorqual_recipe.encodings.call_arguments import split_arguments
from rorqual_recipe.encodings.tool_lines import (
    CUSTOM_INPUT,
    by_printed_name,
    joined_name,
    tool_function,
)
from rorqual_recipe.json_text import spaced_json

JOINER = "__"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
RESULT_OPEN, RESULT_CLOSE = "<tool_response>", "</tool_response>"
Mark = Callable[[str], str]
"""Makes client text safe for the template; it is called for every string of the client."""


def offered_tools(conversation: Conversation) -> dict[str, Tool]:
    """Tools the model shall know of, by the name it knows them by."""
    if conversation.tool_choice.mode is ToolChoiceMode.NONE:
        return {}
    later = [tool for message in conversation.messages for tool in message.declared_tools]
    return by_printed_name(
        [*(tool for tool in conversation.tools if not tool.deferred), *later], JOINER
    )


def tool_values(tools: dict[str, Tool], mark: Mark) -> list[dict[str, Any]]:
    """`tools` of a chat template."""
    functions = (tool_function(name, tool, {}, with_group=True) for name, tool in tools.items())
    return [{"type": "function", "function": _marked_members(f, mark)} for f in functions]


def _marked_members(function: dict[str, Any], mark: Mark) -> dict[str, Any]:
    """A function with all in it marked but the names that templates look for."""
    return {name: marked(value, mark) for name, value in function.items()}


def call_value(call: ToolCall, mark: Mark, *, as_string: bool) -> dict[str, Any]:
    """One of an assistant's `tool_calls`. as_string: arguments keep the client's spelling."""
    name = mark(joined_name(call.namespace, call.name, JOINER))
    arguments: Any = mark(arguments_text(call))
    if not as_string:
        arguments = marked(_as_object(call), mark)
    return {
        "id": mark(call.call_id),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def arguments_text(call: ToolCall) -> str:
    """Arguments as JSON text, free text of a custom tool wrapped."""
    if call.kind is ToolKind.CUSTOM:
        return spaced_json({CUSTOM_INPUT: call.arguments})
    return call.arguments


def _as_object(call: ToolCall) -> dict[str, Any]:
    if call.kind is ToolKind.CUSTOM:
        return {CUSTOM_INPUT: call.arguments}
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    return {parameter.name: parameter.value for parameter in split_arguments(call.arguments)}


def marked(value: Any, mark: Mark) -> Any:
    """A JSON value with every string in it marked, names of members too."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, dict):
        return {mark(key): marked(item, mark) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [marked(item, mark) for item in value]
    return value


def tool_section(tools: dict[str, Tool]) -> str:
    """A system text that declares tools, for models whose template can't."""
    lines = "\n".join(
        spaced_json(tool_function(name, tool, {}, with_group=True)) for name, tool in tools.items()
    )
    return (
        "# Tools\n\n"
        "These functions can be called, one JSON object a line:\n"
        f"{lines}\n\n"
        "To call one, write this, once for every call:\n"
        f'{CALL_OPEN}\n{{"name": "the function", "arguments": {{"an argument": "its value"}}}}\n'
        f"{CALL_CLOSE}\nThe result follows between {RESULT_OPEN} and {RESULT_CLOSE}."
    )


def calls_as_text(content: str, calls: Sequence[ToolCall]) -> str:
    """An assistant's content with its calls written out."""
    lines = [
        f'{CALL_OPEN}\n{{"name": {spaced_json(joined_name(call.namespace, call.name, JOINER))}, '
        f'"arguments": {arguments_text(call) or "{}"}}}\n{CALL_CLOSE}'
        for call in calls
    ]
    return "\n".join([content, *lines] if content else lines)


def results_as_text(results: Sequence[str]) -> str:
    """Results of tools as one message of the user."""
    return "\n".join(f"{RESULT_OPEN}\n{result}\n{RESULT_CLOSE}" for result in results)
