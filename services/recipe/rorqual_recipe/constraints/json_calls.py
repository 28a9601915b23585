"""Calls as JSON with a name in it: the formats of most open models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rorqual_recipe.constraints.tags import (
    Format,
    answer_with,
    any_of,
    free_text,
    json_value,
    listed,
    optional,
    regex,
    sequence,
    spelled,
    text,
)
from rorqual_recipe.constraints.tool_schema import CallableTool


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """One such format.

    block_open, block_close: around all calls; call_open, call_close: around each.
    mark: how calls begin inside of text; "" = they can only begin the answer.
    """

    arguments_key: str
    separator: str
    block_open: str = ""
    block_close: str = ""
    call_open: str = ""
    call_close: str = ""
    mark: str = ""

    def block(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """At least one call; more where several is set."""
        own = self._own_tokens(tokens)
        opened = spelled(self.block_open, own)
        return sequence(opened, self._rest(tools, own, several=several, is_call_open=False))

    def in_text(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """Free text in which calls may come."""
        own = self._own_tokens(tokens)
        if not self.mark:
            plain = optional(sequence(regex("[^{]"), free_text()))
            return any_of([self.block(tools, tokens, several=several), plain])
        if self.block_open:
            after = spelled(self.block_open[len(self.mark) :], own)
            behind = sequence(after, self._rest(tools, own, several=several, is_call_open=False))
            return answer_with(self.mark, own, behind, again=False)
        behind = self._rest(tools, own, several=False, is_call_open=True)
        return answer_with(self.mark, own, behind, again=several)

    def warnings(self, tools: Sequence[CallableTool]) -> list[str]:
        """What of the tools is not enforced in this format."""
        return [
            f"{tool.param}: a grammar is not enforced in this model's call format"
            for tool in tools
            if tool.tool.grammar is not None and tool.tool.grammar[0] != "regex"
        ]

    def _own_tokens(self, tokens: Mapping[str, int]) -> dict[str, int]:
        spellings = {self.mark, self.call_open.strip(), self.call_close.strip()}
        return {spelling: tokens[spelling] for spelling in spellings if spelling in tokens}

    def _rest(
        self,
        tools: Sequence[CallableTool],
        own: Mapping[str, int],
        *,
        several: bool,
        is_call_open: bool,
    ) -> Format:
        """Everything behind the opening of the block or, where that is set, of the call."""
        opening = self.call_open[len(self.mark) :] if is_call_open else self.call_open
        call = sequence(
            spelled(opening, own), any_of(map(self._call, tools)), spelled(self.call_close, own)
        )
        calls = listed(call, self.separator, several=several)
        return sequence(calls, spelled(self.block_close, own))

    def _call(self, tool: CallableTool) -> Format:
        name = json.dumps(tool.name, ensure_ascii=False)
        arguments = json_value(tool.schema(), tool.param, fallback=tool.fallback)
        return sequence(text(f'{{"name": {name}, "{self.arguments_key}": '), arguments, text("}"))


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """A list of calls behind one mark, or a mark before each; a vocabulary that has the mark of
    arguments is that of a model that writes the latter."""

    mark: str = "[TOOL_CALLS]"

    def block(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """See JsonCalls.block."""
        if _ARGUMENTS_MARK not in tokens:
            return _MISTRAL_LIST.block(tools, tokens, several=several)
        call = sequence(spelled(self.mark, tokens), self._named_call(tools, tokens))
        return listed(call, "", several=several)

    def in_text(
        self, tools: Sequence[CallableTool], tokens: Mapping[str, int], *, several: bool
    ) -> Format:
        """See JsonCalls.in_text."""
        if _ARGUMENTS_MARK not in tokens:
            return _MISTRAL_LIST.in_text(tools, tokens, several=several)
        behind = self._named_call(tools, tokens)
        return answer_with(self.mark, tokens, behind, again=several)

    def warnings(self, tools: Sequence[CallableTool]) -> list[str]:
        """See JsonCalls.warnings."""
        return _MISTRAL_LIST.warnings(tools)

    def _named_call(self, tools: Sequence[CallableTool], tokens: Mapping[str, int]) -> Format:
        return any_of(
            sequence(
                text(tool.name),
                spelled(_ARGUMENTS_MARK, tokens),
                json_value(tool.schema(), tool.param, fallback=tool.fallback),
            )
            for tool in tools
        )


HERMES = JsonCalls(
    arguments_key="arguments",
    separator="\n",
    call_open="<tool_call>\n",
    call_close="\n</tool_call>",
    mark="<tool_call>",
)
LLAMA3 = JsonCalls(arguments_key="parameters", separator="; ")
_ARGUMENTS_MARK = "[ARGS]"
MISTRAL = MistralCalls()
_MISTRAL_LIST = JsonCalls(
    arguments_key="arguments",
    separator=", ",
    block_open="[TOOL_CALLS][",
    block_close="]",
    mark=MISTRAL.mark,
)
