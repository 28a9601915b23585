"""JSON mode without an enforcing grammar: the JSON value out of what the model wrote around it."""

import re
from collections.abc import Callable
from enum import Enum, auto

from rorqual_recipe.output.calls.json_values import JsonSpan, is_json

_OBJECT = re.compile(r'\{\s*(?:"(?:[^"\\]|\\.)*"\s*:|\})', re.DOTALL)
_OBJECT_BEGUN = re.compile(r'\{\s*(?:"(?:[^"\\]|\\.)*(?:\\|"\s*)?)?\Z', re.DOTALL)
_LIST_BEGUN = re.compile(r'\[\s*(?:["{\[\]\-0-9tfn]|\Z)')
_CANDIDATE = re.compile(r"\{|\n[ \t]*\[")
_MAX_NAME_CHARS = 4096
_FENCED = re.compile(r"\s*```[A-Za-z0-9]*[ \t]*\n(.*?)\n?\s*```\s*", re.DOTALL)
_FENCE = re.compile(r"```[A-Za-z0-9]*\s*\Z")


class _State(Enum):
    SEEKING = auto()
    VALUE = auto()
    BEHIND = auto()


class JsonFilter:
    """Lets the first JSON object or list through and leaves out what is around it.

    An object counts once its first name is complete, from there on it streams; a list has to begin
    a line and is let through when it is complete. Without either, a content that is one JSON value
    passes (bare or fenced), any other passes as it is, with a warning.

    _before: text that no JSON begins in. _held: what follows it, with a line break before it.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._state = _State.SEEKING
        self._before: list[str] = []
        self._held = "\n"
        self._list: tuple[int, JsonSpan, int] | None = None
        self._span = JsonSpan()
        self._value: list[str] = []
        self._has_dropped = False

    def feed(self, text: str) -> str:
        """What of the content may be shown by now."""
        if self._state is _State.SEEKING:
            self._held += text
            return self._seek()
        if self._state is _State.VALUE:
            return self._go_on(text)
        self._drop(text)
        return ""

    def release(self) -> str:
        """No JSON follows here: what was held, and what to think of it."""
        held = self._take_held()
        fenced = _FENCED.fullmatch(held)
        inner = fenced.group(1) if fenced else held
        if is_json(inner):
            return inner.strip()
        if held.strip():
            self._warn("the answer holds no JSON")
        return held

    def release_before_call(self) -> str:
        """What was held, when a tool call follows: words before a call need be no JSON."""
        return self._take_held()

    def finish(self, *, is_cut: bool) -> str:
        """The end of the content."""
        rest = self.release() if self._state is _State.SEEKING else ""
        if self._state is not _State.SEEKING and not is_cut and not is_json("".join(self._value)):
            self._warn("the answer is not valid JSON")
        if self._has_dropped:
            self._warn("text around the JSON was left out")
        return rest

    def _take_held(self) -> str:
        held = "".join([*self._before, self._held])[1:]
        self._before, self._held, self._list = [], "\n", None
        return held

    def _seek(self) -> str:
        while True:
            if self._list is not None:
                found = self._try_list(*self._list)
            else:
                match = _CANDIDATE.search(self._held)
                if match is None:
                    self._keep_line()
                    return ""
                found = self._try_candidate(match)
            if found is not None:
                return found

    def _keep_line(self) -> None:
        """Only a line that is blank so far may still become the beginning of a list."""
        start = self._held.rfind("\n")
        is_blank = start >= 0 and not self._held[start:].strip()
        self._pass_by(start if is_blank else len(self._held))

    def _pass_by(self, size: int) -> None:
        self._before.append(self._held[:size])
        self._held = self._held[size:]

    def _try_candidate(self, match: re.Match[str]) -> str | None:
        """Text to show; "" to wait; None to look further."""
        start = match.end() - 1
        if self._held[start] == "[":
            if _LIST_BEGUN.match(self._held, start):
                self._list = (start, JsonSpan(), start)
            else:
                self._pass_by(match.end())
            return None
        is_long = len(self._held) - start > _MAX_NAME_CHARS
        if _OBJECT.match(self._held, start):
            return self._begin(start)
        if _OBJECT_BEGUN.match(self._held, start):
            return self._begin(start) if is_long else ""
        self._pass_by(match.end())
        return None

    def _try_list(self, start: int, span: JsonSpan, seen: int) -> str | None:
        end = span.feed(self._held, seen)
        if end < 0 and _LIST_BEGUN.match(self._held, start):
            self._list = (start, span, len(self._held))
            return ""
        self._list = None
        if end >= 0 and is_json(self._held[start:end]):
            return self._begin(start)
        self._pass_by(start + 1)
        return None

    def _begin(self, start: int) -> str:
        before = "".join([*self._before, self._held[:start]])
        self._drop(_FENCE.sub("", before))
        text, self._before, self._held = self._held[start:], [], ""
        self._state = _State.VALUE
        return self._go_on(text)

    def _go_on(self, text: str) -> str:
        end = self._span.feed(text)
        if end >= 0:
            self._state = _State.BEHIND
            self._drop(text[end:])
            text = text[:end]
        self._value.append(text)
        return text

    def _drop(self, text: str) -> None:
        self._has_dropped = self._has_dropped or bool(text.strip(" \t\r\n`"))
