"""The tool calls of one answer: their names, ids and arguments, as events."""

from collections.abc import Callable, Mapping
from typing import Any

from rorqual_recipe.conversation import Tool, ToolKind
from rorqual_recipe.output.calls.json_values import json_value
from rorqual_recipe.output.calls.schema_check import misfit
from rorqual_recipe.output.events import (
    AnswerEvent,
    OutputWarning,
    ToolArgumentsDelta,
    ToolCallBegan,
    ToolCallEnded,
)
from rorqual_recipe.output.marks import without_surrogates
from rorqual_recipe.output.plan import tool_call_id

MAX_WARNINGS = 16
MAX_CHECKED_CHARS = 1 << 20


class CallLog:
    """CallSink that makes events. `text` goes to where the answer's own text goes.

    spell: writes out marks.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool] | None,
        id_seed: str,
        spell: Callable[[str], str],
        emit: Callable[[AnswerEvent], None],
        on_text: Callable[[str], None],
    ) -> None:
        self._tools = tools
        self._id_seed = id_seed
        self._marks_spelled = spell
        self._emit = emit
        self._on_text = on_text
        self._tool: Tool | None = None
        self._pieces: list[str] = []
        self._warnings: set[str] = set()
        self.num_calls = 0

    def _spell(self, text: str) -> str:
        """As it can be sent: escapes of JSON may decode to surrogates that are no marks."""
        return without_surrogates(self._marks_spelled(text))

    @property
    def is_custom(self) -> bool:
        """See CallSink.is_custom."""
        return self._tool is not None and self._tool.kind is ToolKind.CUSTOM

    def knows(self, name: str) -> bool:
        """See CallSink.knows."""
        return self._tools is None or self._find(name) is not None

    def takes_text(self, parameter: str) -> bool | None:
        """See CallSink.takes_text."""
        declared = self._tool.parameters.get("properties") if self._tool else None
        schema = declared.get(self._spell(parameter)) if isinstance(declared, Mapping) else None
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        return None if kind is None else kind == "string"

    def begin(self, name: str) -> None:
        """See CallSink.begin."""
        self._tool, self._pieces = self._find(name), []
        spelled = self._spell(name)
        self._emit(
            ToolCallBegan(
                index=self.num_calls,
                call_id=tool_call_id(self._id_seed, self.num_calls),
                name=self._tool.name if self._tool else spelled,
                namespace=self._tool.namespace if self._tool else "",
                is_custom=self.is_custom,
            )
        )
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """See CallSink.arguments."""
        if text:
            spelled = self._spell(text)
            self._pieces.append(spelled)
            self._emit(ToolArgumentsDelta(self.num_calls - 1, spelled))

    def end(self, problem: str | None = None, *, is_cut: bool = False) -> None:
        """See CallSink.end."""
        arguments = "".join(self._pieces)
        if not is_cut and not self.is_custom:
            problem = problem or self._problem_of(arguments)
        told = self._spell(problem) if problem else None
        self._emit(ToolCallEnded(self.num_calls - 1, arguments, told, is_cut))
        self._tool, self._pieces = None, []

    def text(self, text: str) -> None:
        """See CallSink.text."""
        if text:
            self._on_text(text)

    def warn(self, message: str) -> None:
        """See CallSink.warn. Each message once, and bounded in number."""
        if message not in self._warnings and len(self._warnings) < MAX_WARNINGS:
            self._warnings.add(message)
            self._emit(OutputWarning(self._spell(message)))

    def _find(self, name: str) -> Tool | None:
        tools = self._tools or {}
        return tools.get(name) or tools.get(name.strip())

    def _problem_of(self, arguments: str) -> str | None:
        try:
            value: Any = json_value(arguments)
        except ValueError:
            return "the arguments are not valid JSON"
        if not isinstance(value, dict):
            return "the arguments are not a JSON object"
        if self._tool is None or len(arguments) > MAX_CHECKED_CHARS:
            return None
        return misfit(value, self._tool.parameters)
