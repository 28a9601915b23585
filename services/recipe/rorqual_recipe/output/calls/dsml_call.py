"""One call in DSML: what stands between `invoke` and its end."""

from rorqual_recipe.output.calls.base import CallSink, TextSink
from rorqual_recipe.output.calls.dsml_arguments import DsmlArguments
from rorqual_recipe.output.calls.dsml_tags import CLOSING, OPENING, Tag, Unread, read_tag
from rorqual_recipe.output.calls.dsml_values import BLANK, MAX_BLANKS, closed_at_end, split_value


def size_of_loose_text(text: str) -> int:
    """As size_of_text, for text that doesn't begin blank, without blanks at its end."""
    return len(text[: size_of_text(text)].rstrip(BLANK))


def size_of_text(text: str) -> int:
    """Characters before the next tag, for text that doesn't begin with a tag; at least one."""
    ends = [at for mark in (OPENING, CLOSING) if (at := text.find(mark, 1)) > 0]
    if ends:
        return min(ends)
    for beginning in (CLOSING[:2], CLOSING[:1]):
        if text.endswith(beginning) and len(text) > len(beginning):
            return len(text) - len(beginning)
    return len(text)


class DsmlCall:
    """Reads one call at a time.

    _parameter: the tag of the parameter being read. _value: what has come of a value that is passed
    on when it is complete. _loose: text that is no parameter.
    """

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._arguments = DsmlArguments(sink)
        self._text = ""
        self._parameter: Tag | None = None
        self._value: list[str] = []
        self._loose: list[str] = []
        self._is_over = False

    @property
    def num_held(self) -> int:
        """Characters not decided upon."""
        return len(self._text)

    @property
    def text_sink(self) -> TextSink | None:
        """See CallFormat.text_sink."""
        if self._text or self._parameter is None or not self._streams(self._parameter):
            return None
        return self._arguments.add_string

    def begin(self, name: str) -> None:
        """The call's tag was read."""
        self._arguments = DsmlArguments(self._sink)
        self._parameter, self._value, self._loose, self._is_over = None, [], [], False
        self._sink.begin(name)

    def feed(self, text: str) -> str | None:
        """More of the call. None while it goes on, else what follows it."""
        self._text += text
        while self._text and not self._is_over:
            if not (self._step_in_value() if self._parameter else self._step_between()):
                break
        if not self._is_over:
            return None
        self._arguments.close()
        return self._end(None, is_cut=False)

    def take_loose(self) -> str:
        """The text in the call that was no parameter; asked for once the call is over."""
        loose, self._loose = "".join(self._loose).strip(BLANK), []
        return loose

    def finish(self, *, is_cut: bool) -> str:
        """The answer ends in this call. What follows the call, where its end can be told."""
        if self._parameter is not None:
            end = closed_at_end(self._text)
            if end is None:
                return self._break_off(self._parameter, is_cut=is_cut)
            self._end_value(end)
        rest = self.feed("")
        if rest is not None:
            return rest
        has_begun_parameter = self._text.strip(BLANK).startswith(OPENING)
        if is_cut or has_begun_parameter:
            return self._end("the answer ended inside the call", is_cut=True)
        self._sink.warn("a tool call had no end")
        self._arguments.close()
        return self._end(None, is_cut=False)

    def _end(self, problem: str | None, *, is_cut: bool) -> str:
        problems = [*self._arguments.problems, *([problem] if problem else [])]
        self._sink.end("; ".join(problems) or None, is_cut=is_cut)
        rest, self._text = self._text, ""
        return rest

    def _break_off(self, parameter: Tag, *, is_cut: bool) -> str:
        """The answer ends inside a value: what there is of it is passed on, open as it is.

        What may have been the beginning of a tag is not, when the answer would have gone on.
        """
        held = self._take(len(self._text))
        rest = "" if is_cut else held
        if self._streams(parameter):
            self._arguments.add_string(rest)
        else:
            self._arguments.add_broken(parameter.name, "".join(self._value) + rest)
        return self._end(f"the answer ended inside parameter `{parameter.name}`", is_cut=True)

    def _step_between(self) -> bool:
        rest = self._text.lstrip(BLANK)
        tag = read_tag(rest)
        if not rest and len(self._text) > MAX_BLANKS:
            self._text = ""
        if tag is Unread.MORE or not rest:
            return False
        num_blanks = len(self._text) - len(rest)
        if not isinstance(tag, Tag):
            self._loose.append(self._take(num_blanks + size_of_loose_text(rest)))
            return True
        self._take(num_blanks)
        if tag.word == "parameter" and not tag.is_closing:
            self._take(tag.end)
            self._begin_value(tag)
        elif tag.word == "invoke" and tag.is_closing:
            self._take(tag.end)
            self._is_over = True
        elif tag.word == "parameter" or (tag.is_block and not tag.is_closing):
            self._loose.append(self._take(tag.end))
        else:
            self._sink.warn("a tool call had no end")
            self._is_over = True
        return True

    def _streams(self, parameter: Tag) -> bool:
        return parameter.attributes.get("string") == "true"

    def _begin_value(self, tag: Tag) -> None:
        self._parameter, self._value = tag, []
        if self._streams(tag):
            self._arguments.begin_string(tag.name)

    def _step_in_value(self) -> bool:
        assert self._parameter is not None
        size, end = split_value(self._text)
        certain = self._take(size)
        if certain and self._streams(self._parameter):
            self._arguments.add_string(certain)
        elif certain:
            self._value.append(certain)
        if end is None:
            return False
        self._end_value(end - size)
        return True

    def _end_value(self, size: int) -> None:
        assert self._parameter is not None
        self._take(size)
        parameter, self._parameter = self._parameter, None
        marking = parameter.attributes.get("string")
        if marking == "true":
            self._arguments.end_string()
        elif marking == "false":
            self._arguments.add_value(parameter.name, "".join(self._value))
        else:
            self._arguments.add_unmarked(parameter.name, "".join(self._value))

    def _take(self, size: int) -> str:
        taken, self._text = self._text[:size], self._text[size:]
        return taken
