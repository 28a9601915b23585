"""Mistral's tool calls: a list of objects, or a name and its arguments."""

import re
from collections.abc import Mapping
from typing import ClassVar

from rorqual_recipe.output.calls.base import CallSink
from rorqual_recipe.output.calls.json_call import ArgumentsSpan
from rorqual_recipe.output.calls.json_formats import BLANK, JsonFormat
from rorqual_recipe.output.marks import TOOL_CLOSE, TOOL_EXTRA, TOOL_MARK

_MAX_NAME_CHARS = 512


class MistralCalls(JsonFormat):
    """`[TOOL_CALLS][{...}, ...]` and `[TOOL_CALLS]name[ARGS]{...}`."""

    marks: ClassVar[Mapping[str, str]] = {
        TOOL_MARK: "[TOOL_CALLS]",
        TOOL_CLOSE: "[ARGS]",
        TOOL_EXTRA: "[CALL_ID]",
    }
    _NAME = re.compile(rf"\s*([^{{\[\s{TOOL_MARK}{TOOL_CLOSE}{TOOL_EXTRA}]+)\s*")
    _BEFORE_ARGUMENTS = re.compile(
        rf"\s*(?:{TOOL_EXTRA}[^{{{TOOL_CLOSE}]*)?{TOOL_CLOSE}?\s*(?=\{{)"
    )

    def __init__(self, sink: CallSink) -> None:
        super().__init__(sink)
        self._arguments: ArgumentsSpan | None = None
        self._in_list = False

    def open_inside(self) -> None:
        """See CallFormat.open_inside."""
        self.open(TOOL_MARK)

    def _step(self) -> bool:
        if self._arguments is not None:
            return self._step_arguments(self._arguments)
        if self._call is not None:
            return bool(self._text) and self._step_call()
        if self._take_mark():
            self._in_list = False
        self._skip(BLANK + ("," if self._in_list else ""))
        if not self._text:
            return False
        if self._in_list and self._text[0] in "{]":
            return self._step_list()
        if self._text[0] == "[" and self._lead and not self._in_list:
            self._lead, self._text, self._in_list = self._lead + "[", self._text[1:], True
            return True
        if not self._lead or self._in_list:
            return self._leave()
        return self._step_name()

    def _leave(self) -> bool:
        if self._lead:
            self._give_up(0)
        self._is_open = False
        return True

    def _step_list(self) -> bool:
        if self._text[0] == "{":
            return self._step_call()
        self._text, self._in_list = self._text[1:], False
        if self._lead:
            self._lead += "]"
            self._give_up(0)
        return True

    def _step_name(self) -> bool:
        name = self._NAME.match(self._text)
        if name is None or name.end() > _MAX_NAME_CHARS:
            self._give_up(0)
            return True
        before = self._BEFORE_ARGUMENTS.match(self._text, name.end())
        if before is None:
            rest = self._text[name.end() :]
            is_id = rest[:1] in (TOOL_CLOSE, TOOL_EXTRA) and len(rest) <= _MAX_NAME_CHARS
            if rest and not is_id:
                self._give_up(0)
                return True
            return False
        if not self._sink.knows(name.group(1)):
            self._sink.warn(f"a call of the unknown tool `{name.group(1)[:128]}` became content")
            self._give_up(0)
            return True
        self._lead, self._text = "", self._text[before.end() :]
        self._arguments = ArgumentsSpan(self._sink)
        self._sink.begin(name.group(1))
        return True

    def _step_arguments(self, arguments: ArgumentsSpan) -> bool:
        rest = arguments.feed(self._text)
        self._text = rest or ""
        if rest is None:
            return False
        self._arguments = None
        arguments.close()
        return True

    def finish(self, *, is_cut: bool) -> None:
        """See CallFormat.finish."""
        if self._arguments is not None:
            self._arguments.break_off(is_cut=is_cut)
            self._arguments = None
        super().finish(is_cut=is_cut)
