"""What a chat template can do, found by rendering small conversations with it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Template, TemplateError

from rorqual_recipe.encodings.base import NO_TOOL_FORMAT
from rorqual_recipe.encodings.template_sandbox import TemplateRefusal, render_bounded

_MAX_CHARS = 1 << 20
_TOOL, _KEY, _VALUE, _RESULT = "probe_tool", "probe_key", "probe value", "probe result"
_ARGUMENTS = f'{{"{_KEY}":  "{_VALUE}"}}'
_REASONING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_USER = {"role": "user", "content": "hello"}
_FAILURES = (TemplateRefusal, TemplateError, TypeError, ValueError, KeyError, IndexError)


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """has_tools: declared tools, calls and results all show up in the prompt.

    takes_system: a system message shows up in the prompt.
    takes_string: arguments may be given as their JSON text and keep their spelling.
    tool_format: of calls as the template writes them, `none` when it is not known.
    """

    has_tools: bool
    takes_system: bool
    takes_string: bool
    tool_format: str
    reasoning_marks: tuple[str, str] | None


def probe_template(
    template: Template, source: str, named_tokens: Mapping[str, str]
) -> TemplateTraits:
    """Renders a few conversations; takes milliseconds."""
    probe = _Probe(template, named_tokens)
    has_tools = probe.shows_tools()
    with_string, with_object = probe.call(_ARGUMENTS), probe.call(json.loads(_ARGUMENTS))
    takes_string = _ARGUMENTS in with_string
    written = with_string if takes_string else with_object
    found = (pair for pair in _REASONING_MARKS if pair[0] in source or pair[1] in source)
    return TemplateTraits(
        has_tools=has_tools and _TOOL in written and _RESULT in written,
        takes_system=probe.shows_system(),
        takes_string=takes_string,
        tool_format=_format_of(written),
        reasoning_marks=next(found, None),
    )


class AnswerHeader:
    """What a template writes last, where the answer begins; it depends on its switches only."""

    def __init__(self, template: Template, named_tokens: Mapping[str, str]) -> None:
        self._probe = _Probe(template, named_tokens)
        self._known: dict[str, str] = {}

    def text(self, switches: Mapping[str, Any]) -> str:
        """The text behind the last message; "" when it can't be told."""
        key = json.dumps(switches, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._probe.header(switches)
        return self._known[key]


class _Probe:
    def __init__(self, template: Template, named_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._named_tokens = named_tokens

    def shows_tools(self) -> bool:
        """Whether a declared tool is in the prompt."""
        function = {"name": _TOOL, "description": "", "parameters": {"type": "object"}}
        return _TOOL in self._render([_USER], tools=[{"type": "function", "function": function}])

    def shows_system(self) -> bool:
        """Whether a system message is in the prompt."""
        return _RESULT in self._render([{"role": "system", "content": _RESULT}, _USER])

    def call(self, arguments: Any) -> str:
        """What is written for a call and its result; "" when the template can't."""
        call_id = "123456789"  # some templates insist on nine characters
        function = {"name": _TOOL, "arguments": arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        result = {"role": "tool", "name": _TOOL, "tool_call_id": call_id, "content": _RESULT}
        tool = {"type": "function", "function": {"name": "x", "description": "", "parameters": {}}}
        return self._render(
            [_USER, {"role": "assistant", "content": "", "tool_calls": calls}, result], tools=[tool]
        )

    def header(self, switches: Mapping[str, Any]) -> str:
        """What asking for an answer adds to a conversation."""
        whole = self._render([_USER], **switches)
        start = self._render([_USER], **switches, add_generation_prompt=False)
        return whole[len(start) :] if whole.startswith(start) else ""

    def _render(self, messages: Sequence[Mapping[str, Any]], **values: Any) -> str:
        values = {"messages": messages, "add_generation_prompt": True, **values}
        try:
            return render_bounded(
                self._template, {**self._named_tokens, **values}, max_chars=_MAX_CHARS
            )
        except _FAILURES:
            return ""


def _format_of(written: str) -> str:
    """The format of the call in a rendered conversation."""
    before, found, after = written.partition(_TOOL)
    if not found:
        return NO_TOOL_FORMAT
    if "｜DSML｜" in before:
        return "dsml-v4.1" if "｜DSML｜ invoke" in written else "dsml-v4"
    if "[TOOL_CALLS]" in before:
        return "mistral"
    if '"name": "' not in before[-20:]:
        return NO_TOOL_FORMAT
    if "<tool_call>" in before[-60:]:
        return "hermes"
    return "llama3-json" if '"parameters"' in after[:20] else NO_TOOL_FORMAT
