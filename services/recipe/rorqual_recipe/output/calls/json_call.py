"""One call written as a JSON object: `{"name": ..., "arguments": {...}}`, and what is like it."""

import json
import re
from enum import Enum, auto
from typing import Any

from rorqual_recipe.output.calls.base import CallSink
from rorqual_recipe.output.calls.custom_input import unwrapped
from rorqual_recipe.output.calls.json_values import JsonSpan, json_value

_MAX_PRELUDE_CHARS = 4096
MAX_HELD_CHARS = 256 << 10
_STRING = r'"((?:[^"\\\ud800-\udfff]|\\.)*)"'
_SIDE = r'(?:"(?:type|id)"\s*:\s*"[^"\\]*"\s*,\s*)*'
_PRELUDE = re.compile(
    rf'\s*\{{\s*{_SIDE}"name"\s*:\s*{_STRING}\s*,\s*{_SIDE}"(?:arguments|parameters)"\s*:\s*(?=\{{)'
)
_FIRST_KEY = re.compile(rf"\s*\{{\s*{_STRING}")
_CALL_KEYS = frozenset({"name", "type", "id", "arguments", "parameters", "function"})


class Outcome(Enum):
    """What became of the text so far."""

    MORE = auto()
    CALL = auto()
    NO_CALL = auto()


class JsonCall:
    """Reads one call. Its arguments stream as they are written once its name is known.

    text: all of the object so far while it is undecided, else what lies behind it.
    """

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._span = JsonSpan()
        self._arguments: ArgumentsSpan | None = None
        self._num_seen = 0
        self.text = ""

    @property
    def has_begun(self) -> bool:
        """True while a call is open."""
        return self._arguments is not None

    def feed(self, text: str) -> Outcome:
        """More text, beginning with the object's `{`."""
        self.text += text
        if self._arguments is not None:
            return self._go_on()
        num_seen, self._num_seen = self._num_seen, len(self.text)
        end = self._span.feed(self.text, num_seen)
        if num_seen < _MAX_PRELUDE_CHARS:
            prelude = _PRELUDE.match(self.text, 0, _MAX_PRELUDE_CHARS)
            if prelude is not None:
                return self._begin(prelude)
            if self._has_foreign_key():
                return Outcome.NO_CALL
        if self._span.is_broken or (end < 0 and len(self.text) > MAX_HELD_CHARS):
            return Outcome.NO_CALL
        return Outcome.MORE if end < 0 else self._take_whole(end)

    def finish(self, *, is_cut: bool) -> None:
        """The answer ends inside the begun call."""
        if self._arguments is not None:
            self._arguments.break_off(is_cut=is_cut)
            self.text = ""

    def _begin(self, prelude: re.Match[str]) -> Outcome:
        name = json.loads(f'"{prelude.group(1)}"', strict=False)
        if not self._sink.knows(name):
            self._sink.warn(f"a call of the unknown tool `{name[:128]}` became content")
            return Outcome.NO_CALL
        self._arguments = ArgumentsSpan(self._sink)
        self._span = JsonSpan()
        self._span.feed(self.text[: prelude.end()])
        self._sink.begin(name)
        self.text = self.text[prelude.end() :]
        return self._go_on()

    def _go_on(self) -> Outcome:
        """Arguments, then the end of the object around them."""
        assert self._arguments is not None
        if not self._arguments.is_over:
            rest = self._arguments.feed(self.text)
            self.text = rest or ""
            if rest is None:
                return Outcome.MORE
        end = self._span.feed(self.text)
        if end < 0:
            self.text = ""
            return Outcome.MORE
        self.text = self.text[end:]
        self._arguments.close()
        return Outcome.CALL

    def _has_foreign_key(self) -> bool:
        key = _FIRST_KEY.match(self.text, 0, _MAX_PRELUDE_CHARS)
        return key is not None and key.group(1) not in _CALL_KEYS

    def _take_whole(self, end: int) -> Outcome:
        """The object is complete and was not in the usual order."""
        try:
            found = json_value(self.text[:end])
        except ValueError:
            return Outcome.NO_CALL
        name, arguments = _name_and_arguments(found)
        if name is None or not self._sink.knows(name):
            return Outcome.NO_CALL
        self._sink.begin(name)
        self._sink.arguments(unwrapped(arguments) if self._sink.is_custom else arguments)
        self._sink.end()
        self.text = self.text[end:]
        return Outcome.CALL


def _name_and_arguments(found: Any) -> tuple[str | None, str]:
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None, ""
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        return found["name"], arguments or "{}"
    return found["name"], json.dumps(arguments, ensure_ascii=False)


class ArgumentsSpan:
    """The arguments of a begun call, passed on as they are written.

    The free text of a custom tool comes whole, once it is complete: it is written as JSON.
    """

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._span = JsonSpan()
        self._wrapped = ""
        self.is_over = False

    def feed(self, text: str) -> str | None:
        """More text; what is behind the arguments once they are complete."""
        end = self._span.feed(text)
        self.is_over = end >= 0
        own = text if end < 0 else text[:end]
        if self._sink.is_custom:
            self._wrapped += own
        else:
            self._sink.arguments(own)
        return text[end:] if self.is_over else None

    def close(self) -> None:
        """The call is complete."""
        self._unwrap(is_cut=False)
        self._sink.end("the arguments broke off" if self._span.is_broken else None)

    def break_off(self, *, is_cut: bool) -> None:
        """The answer ends here."""
        if self.is_over and not is_cut:
            self._sink.warn("a tool call had no end")
            self.close()
        else:
            self._unwrap(is_cut=not self.is_over)
            self._sink.end("the answer ended inside the call", is_cut=True)

    def _unwrap(self, *, is_cut: bool) -> None:
        if self._wrapped:
            self._sink.arguments(unwrapped(self._wrapped, is_cut=is_cut))
            self._wrapped = ""
