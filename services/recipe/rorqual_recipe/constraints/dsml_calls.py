"""Calls in DSML, of V4 and V4.1: parameters in the order of the schema, each with its own value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rorqual_recipe.constraints.dsml_values import MARK, Value, ValueWriter
from rorqual_recipe.constraints.tags import (
    Format,
    answer_with,
    any_of,
    free_text,
    optional,
    regex,
    sequence,
    spelled,
    star,
    text,
)
from rorqual_recipe.constraints.tool_schema import CUSTOM_INPUT, CallableTool

_LAYOUT_KEYS = {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema"),
    *("$id", "title", "description", "default", "examples", "$comment", "deprecated"),
}
_NAME = free_text('"', "\n", MARK)


@dataclass(frozen=True, slots=True)
class DsmlCalls:
    """One version's spelling. empty_call: what stands in a call without parameters."""

    block_word: str
    gap: str
    empty_call: str
    mark: str = MARK

    def block(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """At least one call; more where several is set."""
        own = _own_tokens(tokens)
        opened = spelled(f"<{MARK}{self.block_word}>\n", own)
        inside = self.inside_block(tools, tokens, several=several)
        return sequence(optional(text("\n\n")), opened, inside)

    def inside_block(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """The rest of a block that is open already."""
        own = _own_tokens(tokens)
        call = any_of(self._call(tool, own) for tool in tools)
        calls = sequence(call, star(call)) if several else call
        return sequence(calls, spelled(f"</{MARK}{self.block_word}>", own))

    def in_text(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """Free text that may end in a block of calls."""
        own = _own_tokens(tokens)
        opened = text(f"{self.block_word}>\n")
        behind = sequence(opened, self.inside_block(tools, tokens, several=several))
        return answer_with(MARK if own else f"<{MARK}", own, behind, again=False)

    def warnings(self, tools: Sequence[CallableTool]) -> list[str]:
        """What of the tools is not enforced in this format."""
        return [
            f"{tool.param}: keyword {key!r} is not enforced in this model's call format"
            for tool in tools
            if tool.tool.strict
            for key in sorted(set(self._writer(tool).resolved(tool.schema())) - _LAYOUT_KEYS)
        ]

    def _call(self, tool: CallableTool, own: Mapping[str, int]) -> Format:
        opened = spelled(f'<{MARK}{self.gap}invoke name="{tool.name}">\n', own)
        closed = spelled(f"</{MARK}{self.gap}invoke>\n", own)
        return sequence(opened, self._parameters(tool, own), closed)

    def _parameters(self, tool: CallableTool, own: Mapping[str, int]) -> list[Format]:
        if tool.is_custom:
            return [self._parameter(text(CUSTOM_INPUT), [Value(True, _custom_text(tool))], own)]
        writer = self._writer(tool)
        schema = writer.resolved(tool.schema())
        properties = schema.get("properties", {})
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        every = {**properties, **{name: True for name in required if name not in properties}}
        parts = []
        for name, value in every.items():
            part = self._parameter(text(name), writer.values(value), own)
            parts.append(part if name in required else optional(part))
        more = schema.get("additionalProperties", "properties" not in schema)
        parts += [] if more is False else [self._others(more, writer, own)]
        if required or not self.empty_call:
            return parts
        empty = text(self.empty_call)
        return [any_of([empty, sequence(*parts)])] if parts else [empty]

    def _others(self, schema: Any, writer: ValueWriter, own: Mapping[str, int]) -> Format:
        """Parameters of any name."""
        return star(self._parameter(_NAME, writer.values(schema), own))

    def _writer(self, tool: CallableTool) -> ValueWriter:
        return ValueWriter(tool.tool.parameters, tool.param, is_strict=tool.tool.strict)

    def _parameter(self, name: Format, values: Sequence[Value], own: Mapping[str, int]) -> Format:
        by_kind = {
            kind: [v.format for v in values if v.is_string is kind] for kind in (True, False)
        }
        written = any_of(
            sequence(text(f'" string="{str(kind).lower()}">'), any_of(formats))
            for kind, formats in by_kind.items()
            if formats
        )
        opened = spelled(f'<{MARK}{self.gap}parameter name="', own)
        return sequence(opened, name, written, spelled(f"</{MARK}{self.gap}parameter>\n", own))


def _own_tokens(tokens: Mapping[str, int]) -> dict[str, int]:
    return {MARK: tokens[MARK]} if MARK in tokens else {}


def _custom_text(tool: CallableTool) -> Format:
    """A custom tool's whole input."""
    syntax, definition = tool.tool.grammar or ("", "")
    if syntax == "regex":
        return regex(definition, tool.param)
    if syntax == "lark":
        return {"type": "grammar", "syntax": "lark", "grammar": definition, "param": tool.param}
    return free_text(MARK)


V4 = DsmlCalls(block_word="tool_calls", gap="", empty_call="")
V41 = DsmlCalls(block_word=" calls", gap=" ", empty_call="\n")
