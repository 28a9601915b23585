"""A conversation's messages as a chat template takes them."""

from collections.abc import Sequence
from typing import Any

from rorqual_recipe.conversation import Message, Role, TextPart
from rorqual_recipe.encodings.message_parts import PART_SEPARATOR, text_of
from rorqual_recipe.encodings.template_tools import (
    Mark,
    call_value,
    calls_as_text,
    results_as_text,
)
from rorqual_recipe.encodings.template_traits import TemplateTraits

_ROLES = {Role.DEVELOPER: Role.SYSTEM, Role.REMINDER: Role.SYSTEM}


class MessageValues:
    """Makes values; every string of the client goes through `mark`.

    Tools that the template has no place for become text: a system section that declares them,
    calls in the assistant's content, results as the user's message.
    """

    def __init__(self, traits: TemplateTraits, mark: Mark, *, section: str = "") -> None:
        self._traits = traits
        self._mark = mark
        self._section = section
        self._names: dict[str, str] = {}

    def of(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """`messages` of a chat template."""
        messages = [message for message in messages if not _is_silent(message)]
        values: list[dict[str, Any]] = []
        start = 0
        while start < len(messages):
            end = start + 1
            if messages[start].role is Role.TOOL and not self._traits.has_tools:
                while end < len(messages) and messages[end].role is Role.TOOL:
                    end += 1
                values.append(self._results(messages[start:end]))
            else:
                values.append(self._message(messages[start]))
            start = end
        values = self._with_section(values)
        return values if self._traits.takes_system else _said_by_user(values)

    def _with_section(self, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The section behind the first system message, or a system message of its own."""
        if not self._section:
            return values
        section = self._mark(self._section)
        if values and values[0]["role"] == "system" and isinstance(values[0]["content"], str):
            first = {**values[0], "content": f"{values[0]['content']}\n\n{section}"}
            return [first, *values[1:]]
        return [{"role": "system", "content": section}, *values]

    def _results(self, messages: Sequence[Message]) -> dict[str, Any]:
        text = results_as_text([text_of(message) for message in messages])
        return {"role": "user", "content": self._mark(text)}

    def _message(self, message: Message) -> dict[str, Any]:
        role = _ROLES.get(message.role, message.role)
        value: dict[str, Any] = {"role": role.value, "content": self._content(message)}
        self._names |= {call.call_id: call.name for call in message.tool_calls}
        name = message.name or self._names.get(message.tool_call_id or "")
        if name is not None:
            value["name"] = self._mark(name)
        if message.tool_call_id is not None:
            value["tool_call_id"] = self._mark(message.tool_call_id)
        if message.reasoning is not None:
            value["reasoning_content"] = self._mark(message.reasoning)
        if message.tool_calls and self._traits.has_tools:
            as_string = self._traits.takes_string
            calls = [call_value(c, self._mark, as_string=as_string) for c in message.tool_calls]
            value["tool_calls"] = calls
        return value

    def _content(self, message: Message) -> Any:
        if all(isinstance(part, TextPart) for part in message.parts):
            text = text_of(message)
            if message.tool_calls and not self._traits.has_tools:
                text = calls_as_text(text, message.tool_calls)
            return self._mark(text)
        return [
            {"type": "text", "text": self._mark(part.text)}
            if isinstance(part, TextPart)
            else {"type": "image"}
            for part in message.parts
        ]


def _said_by_user(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages as the beginning of the user's next one, or as the user's last."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    for value in values:
        content = value["content"]
        if value["role"] == "system" and isinstance(content, str):
            waiting.append(content)
        elif value["role"] == "user" and isinstance(content, str):
            found.append({**value, "content": PART_SEPARATOR.join([*waiting, content])})
            waiting = []
        else:
            found.append(value)
    if waiting:
        found.append({"role": "user", "content": PART_SEPARATOR.join(waiting)})
    return found


def _is_silent(message: Message) -> bool:
    """A system message that only declares tools, which stand elsewhere in such a prompt."""
    return message.role is Role.SYSTEM and bool(message.declared_tools) and not message.parts
