"""Tool calls in DSML, of V4 and V4.1: a block of invokes, each with parameters.

Policy for markup that is not as it should be, the same in any portions:
- a block without a call, a call of an unknown tool, a tag that is none: stays text, whole;
- text between calls becomes content, text inside a call becomes content behind it;
- a closing tag ends a value only where the markup goes on behind it, else it belongs to the value;
- a missing end of a call is where the next call or the end of the block is;
- what the answer's limit cuts off before a call has begun is left out, with a warning.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import ClassVar

from rorqual_recipe.output.calls.base import CallSink, TextSink
from rorqual_recipe.output.calls.dsml_call import DsmlCall, size_of_loose_text, size_of_text
from rorqual_recipe.output.calls.dsml_tags import OPENING, Tag, Unread, read_tag
from rorqual_recipe.output.calls.dsml_values import BLANK, MAX_BLANKS
from rorqual_recipe.output.marks import TOOL_MARK

MAX_HELD_CHARS = 64 << 10


class _State(Enum):
    CLOSED = auto()
    OPENING = auto()
    BLOCK = auto()
    CALL = auto()
    UNKNOWN_CALL = auto()


class DsmlCalls:
    """CallFormat of DSML.

    _lead: all of a block before its first call, as long as that is not known; _loose: of that
    what is no markup. _shows_markup: the block began with an unknown call and is shown as text.
    """

    marks: ClassVar[Mapping[str, str]] = {TOOL_MARK: "｜DSML｜"}
    opening: ClassVar[str] = OPENING
    opens_content: ClassVar[str] = ""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._call = DsmlCall(sink)
        self._text = self._lead = self._loose = ""
        self._state = _State.CLOSED
        self._is_undecided = self._has_block = self._shows_markup = False
        self._steps: dict[_State, Callable[[], bool]] = {
            _State.OPENING: self._step_opening,
            _State.BLOCK: self._step_block,
            _State.CALL: self._step_call,
            _State.UNKNOWN_CALL: self._step_unknown_call,
        }

    @property
    def num_held(self) -> int:
        """See CallFormat.num_held."""
        return len(self._text) + self._call.num_held

    @property
    def text_sink(self) -> TextSink | None:
        """See CallFormat.text_sink."""
        is_in_call = self._state is _State.CALL and not self._text
        return self._call.text_sink if is_in_call else None

    def open(self, lead: str) -> None:
        """See CallFormat.open."""
        self._state, self._lead, self._loose = _State.OPENING, lead, ""
        self._is_undecided, self._has_block, self._shows_markup = True, False, False

    def open_inside(self) -> None:
        """See CallFormat.open_inside."""
        self.open("")
        self._state, self._has_block = _State.BLOCK, True

    def feed(self, text: str) -> str | None:
        """See CallFormat.feed."""
        self._text += text
        while self._state is not _State.CLOSED and self._text and self._steps[self._state]():
            pass
        if self._state is not _State.CLOSED:
            return None
        rest, self._text = self._text, ""
        return rest

    def finish(self, *, is_cut: bool) -> None:
        """See CallFormat.finish."""
        if self._state is _State.CALL:
            self._text = self._call.finish(is_cut=is_cut)
            self._end_call()
            self._text = self.feed("") or self._text
        rest, self._text = self._text, ""
        if self._state is _State.UNKNOWN_CALL:
            self._sink.text(rest)
        elif self._is_undecided and self._state is not _State.CLOSED:
            self._finish_undecided(self._lead + rest, is_cut)
        elif rest.strip(BLANK):
            self._sink.warn(f"tool markup broken off at the end was left out: {rest[:80]}")
        self._state = _State.CLOSED

    def _finish_undecided(self, text: str, is_cut: bool) -> None:
        if not text.strip(BLANK):
            return
        if is_cut:
            self._sink.warn("the answer was cut inside tool markup, which was left out")
        else:
            self._sink.warn("tool markup without a call became content")
            self._sink.text(text)

    def _step_opening(self) -> bool:
        tag = read_tag(self._text)
        if tag is Unread.MORE:
            return False
        if isinstance(tag, Tag) and not tag.is_closing and (tag.is_block or tag.word == "invoke"):
            self._state = _State.BLOCK
            if tag.is_block:
                self._has_block = True
                self._lead += self._take(tag.end)
        else:
            self._become_text(len(OPENING))
        return True

    def _become_text(self, size: int) -> None:
        """The block so far and `size` more characters are no calls after all."""
        self._sink.warn("tool markup without a call became content")
        lead, taken = self._lead, self._take(size)
        self._lead, self._is_undecided, self._state = "", False, _State.CLOSED
        self._sink.text(lead + taken)

    def _step_block(self) -> bool:
        rest = self._text.lstrip(BLANK)
        tag = read_tag(rest)
        if not rest and len(self._text) > MAX_BLANKS:
            self._pass(self._take(len(self._text)), is_markup=True)
        if tag is Unread.MORE or not rest:
            return False
        num_blanks = len(self._text) - len(rest)
        if not (self._has_block or self._is_undecided or _goes_on(tag)):
            self._state = _State.CLOSED
            return False
        if isinstance(tag, Tag):
            self._pass(self._take(num_blanks), is_markup=True)
            self._take_tag(tag)
        else:
            self._pass(self._take(num_blanks + size_of_loose_text(rest)), is_markup=False)
            if len(self._lead) > MAX_HELD_CHARS:
                self._become_text(0)
        return True

    def _take_tag(self, tag: Tag) -> None:
        if tag.word == "invoke" and not tag.is_closing:
            self._begin_call(tag)
        elif tag.is_block and tag.is_closing:
            self._end_block(tag)
        elif tag.is_block:
            self._has_block = True
            self._pass(self._take(tag.end), is_markup=True)
        else:
            self._pass(self._take(tag.end), is_markup=False)

    def _pass(self, text: str, *, is_markup: bool) -> None:
        """Text of a block outside its calls: held, shown, or, if it is mere markup, dropped."""
        if self._is_undecided:
            self._lead += text
            self._loose += "" if is_markup else text
        elif self._shows_markup:
            self._sink.text(text)
        elif not is_markup:
            self._sink.warn("text between tool calls became content")
            self._sink.text(text)

    def _end_block(self, tag: Tag) -> None:
        if self._is_undecided:
            self._become_text(tag.end)
            return
        self._pass(self._take(tag.end), is_markup=True)
        self._state = _State.CLOSED

    def _begin_call(self, tag: Tag) -> None:
        is_known = self._sink.knows(tag.name)
        raw = self._take(tag.end)
        if self._is_undecided:
            self._is_undecided, self._shows_markup = False, not is_known
            if is_known and self._loose.strip(BLANK):
                self._pass(self._loose.strip(BLANK), is_markup=False)
        if is_known:
            self._state = _State.CALL
            self._call.begin(tag.name)
        else:
            self._state = _State.UNKNOWN_CALL
            self._sink.warn(f"a call of the unknown tool `{tag.name[:128]}` became content")
            self._sink.text((self._lead if self._shows_markup else "") + raw)
        self._lead = self._loose = ""

    def _step_call(self) -> bool:
        rest = self._call.feed(self._take(len(self._text)))
        if rest is None:
            return False
        self._text = rest
        self._end_call()
        return True

    def _end_call(self) -> None:
        self._state = _State.BLOCK
        loose = self._call.take_loose()
        if loose:
            self._sink.warn("text inside a tool call became content")
            self._sink.text(loose)

    def _step_unknown_call(self) -> bool:
        tag = read_tag(self._text)
        if tag is Unread.MORE:
            return False
        if not isinstance(tag, Tag):
            self._sink.text(self._take(size_of_text(self._text)))
        elif tag.word == "invoke" and tag.is_closing:
            self._state = _State.BLOCK
            self._sink.text(self._take(tag.end))
        elif tag.word == "parameter":
            self._sink.text(self._take(tag.end))
        else:
            self._state = _State.BLOCK
        return True

    def _take(self, size: int) -> str:
        taken, self._text = self._text[:size], self._text[size:]
        return taken


def _goes_on(tag: Tag | Unread) -> bool:
    """True when a tag continues calls that have no block around them."""
    return isinstance(tag, Tag) and (tag.is_block or (tag.word == "invoke" and not tag.is_closing))
