"""Formats in which a call is a JSON object: what they share, hermes and llama3-json.

What is no call stays text, marks spelled out; a call of an unknown tool does too.
"""

from collections.abc import Mapping
from typing import ClassVar

from rorqual_recipe.output.calls.base import CallSink, TextSink
from rorqual_recipe.output.calls.json_call import JsonCall, Outcome
from rorqual_recipe.output.marks import TOOL_CLOSE, TOOL_MARK

BLANK = " \t\r\n"


class JsonFormat:
    """What the formats share: a lead, held text, calls one after another.

    _lead: what has to be shown when no call comes of it.
    """

    marks: ClassVar[Mapping[str, str]] = {}
    opening: ClassVar[str] = TOOL_MARK
    opens_content: ClassVar[str] = ""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._text = self._lead = ""
        self._call: JsonCall | None = None
        self._is_open = False

    @property
    def num_held(self) -> int:
        """See CallFormat.num_held."""
        return len(self._text) + (len(self._call.text) if self._call else 0)

    @property
    def text_sink(self) -> TextSink | None:
        """See CallFormat.text_sink."""
        return None

    def open(self, lead: str) -> None:
        """See CallFormat.open."""
        self._lead, self._is_open = lead, True

    def open_inside(self) -> None:
        """See CallFormat.open_inside."""
        self.open("")

    def feed(self, text: str) -> str | None:
        """See CallFormat.feed."""
        self._text += text
        while self._is_open and self._step():
            pass
        if self._is_open:
            return None
        rest, self._text = self._text, ""
        return rest

    def finish(self, *, is_cut: bool) -> None:
        """See CallFormat.finish."""
        held = self._text
        if self._call is not None and self._call.has_begun:
            self._call.finish(is_cut=is_cut)
        elif self._call is not None:
            held = self._call.text + held
        left = self._lead + held
        if left.strip(BLANK) and is_cut and self._is_open:
            self._sink.warn("the answer was cut inside a tool call, which was left out")
        elif left.strip(BLANK):
            self._text = held
            self._give_up(len(held))
        self._text, self._call, self._is_open = "", None, False

    def _give_up(self, size: int) -> None:
        """The lead and `size` characters behind it are no call; what follows may be one again."""
        if TOOL_MARK in self._lead:
            self._sink.warn("text like a tool call that is none became content")
        text, self._text = self._lead + self._text[:size], self._text[size:]
        self._lead, self._call, self._is_open = "", None, False
        self._sink.text(text)

    def _step(self) -> bool:
        """Decide upon some of the text; False when that takes more."""
        raise NotImplementedError

    def _step_call(self) -> bool:
        call = self._call = self._call or JsonCall(self._sink)
        text, self._text = self._text, ""
        outcome = call.feed(text)
        if outcome is Outcome.MORE:
            self._lead = "" if call.has_begun else self._lead
            return False
        self._call = None
        if outcome is Outcome.CALL:
            self._lead, self._text = "", call.text
        else:
            self._text = call.text
            self._give_up(1)
        return True

    def _take_mark(self) -> bool:
        """The mark before a call, if it comes next; a second one is no call."""
        if TOOL_MARK in self._lead or not self._text.startswith(TOOL_MARK):
            return False
        self._lead, self._text = self._lead + TOOL_MARK, self._text[1:]
        return True

    def _skip(self, chars: str) -> None:
        kept = self._text.lstrip(chars)
        if self._lead:
            self._lead += self._text[: len(self._text) - len(kept)]
        self._text = kept


class HermesCalls(JsonFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one or more."""

    marks: ClassVar[Mapping[str, str]] = {TOOL_MARK: "<tool_call>", TOOL_CLOSE: "</tool_call>"}

    def _step(self) -> bool:
        if self._call is not None:
            return bool(self._text) and self._step_call()
        self._take_mark()
        self._skip(BLANK)
        if not self._text:
            return False
        if self._lead or self._text[0] == "{":
            if self._text[0] == "{":
                return self._step_call()
            self._give_up(0)
        elif self._text[0] == TOOL_CLOSE:
            self._text = self._text[1:]
            self._is_open = False
        else:
            self._sink.warn("a tool call had no end")
            self._is_open = False
        return True


class LlamaCalls(JsonFormat):
    """`{"name": ..., "parameters": {...}}` as the whole content, several with `;` between."""

    marks: ClassVar[Mapping[str, str]] = {TOOL_MARK: "<|python_tag|>"}
    opens_content: ClassVar[str] = "{"

    def _step(self) -> bool:
        if self._call is not None:
            return bool(self._text) and self._step_call()
        self._take_mark()
        self._skip(BLANK + ";")
        if not self._text:
            return False
        if self._text[0] == "{":
            return self._step_call()
        if self._lead:
            self._give_up(0)
        self._is_open = False
        return True
