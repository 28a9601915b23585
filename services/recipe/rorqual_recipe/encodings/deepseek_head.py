"""The head of a DeepSeek prompt: effort, system text, declared tools, shape of the answer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rorqual_recipe.conversation import (
    ConstraintKind,
    Conversation,
    Message,
    OutputConstraint,
    Tool,
)
from rorqual_recipe.encodings.deepseek_layout import Layout
from rorqual_recipe.encodings.deepseek_mode import Mode
from rorqual_recipe.encodings.message_parts import write_content
from rorqual_recipe.encodings.segments import SegmentWriter
from rorqual_recipe.encodings.tool_lines import by_printed_name, tool_function
from rorqual_recipe.json_text import spaced_json
from rorqual_recipe.profile import PromptProfile

SEPARATOR = "\n\n"


class HeadWriter:
    """Writes what stands before the first turn, and system messages between turns."""

    def __init__(self, layout: Layout, profile: PromptProfile, mode: Mode, out: SegmentWriter):
        self._layout = layout
        self._profile = profile
        self._mode = mode
        self._out = out

    def write(self, conversation: Conversation, leading: Sequence[Message]) -> None:
        """leading: system messages that stand in the head."""
        self._out.special("bos")
        response_format = conversation.response_format
        is_empty = not (
            self._mode.effort_line
            or leading
            or self._mode.has_tools
            or _prints_format(response_format)
        )
        if not self._layout.hoists_system and not is_empty:
            self._out.special("system")
        self._out.fixed(self._mode.effort_line)
        for index, message in enumerate(leading):
            self._out.text(SEPARATOR if index else "")
            write_content(self._out, message, self._profile.image_text)
        if self._mode.has_tools:
            self._tools()
        self._format(response_format)
        for message in leading:
            self._print_declared(message)

    def system(self, message: Message) -> None:
        """A system message's content, and the tools it declares."""
        write_content(self._out, message, self._profile.image_text)
        self._print_declared(message)

    def declared_by(self, message: Message) -> dict[str, Tool]:
        """Tools that are printed with a message: those that may be called."""
        if not (message.declared_tools and self._layout.defers_tools):
            return {}
        named = by_printed_name(message.declared_tools, self._layout.namespace_joiner)
        return {name: tool for name, tool in named.items() if name in self._mode.callable_tools}

    def _print_declared(self, message: Message) -> None:
        tools = self.declared_by(message)
        if tools:
            self._out.fixed(self._profile.tools.update)
            self._lines(tools)

    def _tools(self) -> None:
        texts = self._profile.tools
        self._out.fixed(texts.before)
        self._lines(self._mode.declared)
        self._out.fixed(texts.after)

    def _lines(self, tools: Mapping[str, Tool]) -> None:
        self._out.text("\n".join(self._tool_lines(tools)))

    def _tool_lines(self, tools: Mapping[str, Tool]) -> Iterable[str]:
        taught, with_group = self._profile.functions, self._layout.describes_namespace
        for name, tool in tools.items():
            yield self._json(tool_function(name, tool, taught, with_group=with_group))

    def _format(self, constraint: OutputConstraint | None) -> None:
        if constraint is None:
            return
        texts = self._profile.formats
        if constraint.kind is ConstraintKind.JSON_OBJECT:
            self._out.fixed(texts.json_object)
        elif constraint.kind is ConstraintKind.JSON_SCHEMA:
            self._out.fixed(texts.json_schema)
            self._out.text(self._json(json.loads(constraint.source)))

    def _json(self, value: Any) -> str:
        return spaced_json(value, short_exponents=self._layout.short_exponents)


def _prints_format(constraint: OutputConstraint | None) -> bool:
    printed = (ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA)
    return constraint is not None and constraint.kind in printed
