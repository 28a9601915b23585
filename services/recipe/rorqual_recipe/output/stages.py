"""Reasoning, content and tool calls told apart, in text whose marks are marks.

Line breaks around reasoning, and before tool calls, belong to the format: leading ones are dropped
(not when the answer continues something), those before a mark too. Any others are text.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.output.calls.base import CallFormat, TextSink
from rorqual_recipe.output.marks import REASONING_CLOSE, REASONING_OPEN
from rorqual_recipe.output.token_queue import QueuedToken, TokenQueue


class Kind(Enum):
    """What a piece of text is."""

    REASONING = auto()
    CONTENT = auto()


Show = Callable[[Kind, str, Sequence[QueuedToken], int], None]
"""kind, text, the tokens it came from, where in the answer it begins."""


class Stages:
    """Splits one answer.

    _text: not decided upon, without the line breaks before it, which are counted.
    _end: characters of the answer taken in. _is_fresh: the stage has shown nothing, so line breaks
    are still leading ones. _is_behind_calls: line breaks count only if text follows.
    """

    def __init__(
        self, stage: AnswerStage, tool_format: CallFormat | None, tokens: TokenQueue, show: Show
    ) -> None:
        self._format = tool_format
        self._tokens = tokens
        self._show = show
        self._kind = Kind.REASONING if stage.thinks else Kind.CONTENT
        self._is_fresh = stage in (AnswerStage.REASONING, AnswerStage.CONTENT)
        self._may_open = self._is_fresh
        self._opening = tool_format.opening if tool_format else ""
        self._text = ""
        self._num_breaks = 0
        self._end = 0
        self._in_calls = self._is_behind_calls = False
        self.on_call: Callable[[], None] = lambda: None
        self.is_stopped: Callable[[], bool] = lambda: False
        self.is_stop: Callable[[str], bool] = lambda _: False

    @property
    def kind(self) -> Kind:
        """What the next text is, unless a mark says otherwise."""
        return self._kind

    @property
    def is_in_calls(self) -> bool:
        """True from the first sign of a call to what is certainly behind it."""
        return self._in_calls

    @property
    def text_sink(self) -> TextSink | None:
        """See CallFormat.text_sink; None outside calls."""
        if self._format is None or not self._in_calls or self._text:
            return None
        return self._format.text_sink

    @property
    def is_idle(self) -> bool:
        """True when plain text would be shown as it comes."""
        has_state = self._in_calls or self._is_fresh or self._may_open or self._is_behind_calls
        return not (self._text or self._num_breaks or has_state)

    @property
    def held_endings(self) -> str:
        """Characters that are held back when a text ends in them, since a mark may follow."""
        if self._kind is Kind.CONTENT and not self._opening:
            return ""
        return "\n" + (self._opening[0] if len(self._opening) > 1 else "")

    def open_calls(self) -> None:
        """The prompt ends inside tool calls."""
        if self._format is not None:
            self._format.open_inside()
            self._in_calls = True

    def feed(self, text: str) -> None:
        """More of the answer."""
        self._text += text
        self._end += len(text)
        while self._text and not self.is_stopped() and self._step():
            pass

    def finish(self, *, is_cut: bool) -> None:
        """The answer ends here."""
        if self._in_calls and self._format is not None:
            self._format.finish(is_cut=is_cut)
            self._in_calls = False
        elif self._text or (self._num_breaks and not (self._is_fresh or self._is_behind_calls)):
            self._say(len(self._text))
        self._skip()

    def say_of_calls(self, text: str) -> None:
        """Text that looked like a call, or stood between calls."""
        assert self._format is not None
        at = self._end - self._format.num_held
        self._is_fresh = self._may_open = False
        self._show(self._kind, text, self._tokens.take_until(at), at - len(text))

    def _step(self) -> bool:
        if self._in_calls:
            return self._step_in_calls()
        if self._kind is Kind.CONTENT and not self._opening and not self._is_fresh:
            self._say(len(self._text))
            return True
        rest = self._text.lstrip("\n")
        self._num_breaks += len(self._text) - len(rest)
        self._text = rest
        if self._is_fresh and self._num_breaks:
            self._num_breaks = 0
            self._skip()
        elif self._breaks_are_stop():
            self._say(0)
            return False
        return bool(rest) and (self._step_mark() or self._step_text())

    def _breaks_are_stop(self) -> bool:
        """True when held line breaks complete a stop string, whatever comes behind them."""
        if not self._num_breaks or self._kind is not Kind.CONTENT:
            return False
        return self.is_stop("\n" * self._num_breaks)

    def _step_mark(self) -> bool:
        """A mark stands first: what it changes."""
        first = self._text[0]
        if first == REASONING_OPEN and self._may_open:
            self._drop_mark()
            self._kind, self._is_fresh = Kind.REASONING, True
        elif first == REASONING_CLOSE and self._kind is Kind.REASONING:
            self._drop_mark()
            self._kind, self._is_fresh = Kind.CONTENT, True
        elif self._begins_calls():
            self._begin_calls()
        else:
            return False
        self._may_open = False
        return True

    def _begins_calls(self) -> bool:
        if self._format is None:
            return False
        if self._text.startswith(self._opening):
            return True
        is_first = self._is_fresh and self._kind is Kind.CONTENT
        return is_first and self._text[0] in self._format.opens_content

    def _begin_calls(self) -> None:
        assert self._format is not None
        if self._text.startswith(self._opening) and self._kind is Kind.CONTENT:
            self.on_call()
        lead, self._num_breaks = "\n" * self._num_breaks, 0
        self._in_calls = True
        self._format.open(lead)

    def _step_in_calls(self) -> bool:
        assert self._format is not None
        text, self._text = self._text, ""
        rest = self._format.feed(text)
        self._text = rest or ""
        self._tokens.take_until(self._end - (self._format.num_held + len(self._text)))
        if rest is None:
            return False
        self._in_calls, self._is_behind_calls = False, True
        return True

    def _step_text(self) -> bool:
        text = self._text
        if text == self._opening[:1] and len(self._opening) > 1:
            return False
        ends = [at for mark in self._marks() if (at := text.find(mark, 1)) > 0]
        end = min(ends, default=len(text))
        if not ends and len(self._opening) > 1 and text.endswith(self._opening[0]):
            end -= 1
        self._say(len(text[:end].rstrip("\n")))
        return True

    def _marks(self) -> list[str]:
        marks = [self._opening] if self._opening else []
        return [*marks, REASONING_CLOSE] if self._kind is Kind.REASONING else marks

    def _say(self, size: int) -> None:
        """Show held line breaks and `size` characters behind them."""
        text = "\n" * self._num_breaks + self._text[:size]
        self._text, self._num_breaks = self._text[size:], 0
        self._is_fresh = self._may_open = self._is_behind_calls = False
        end = self._end - len(self._text)
        self._show(self._kind, text, self._tokens.take_until(end), end - len(text))

    def _drop_mark(self) -> None:
        self._text, self._num_breaks = self._text[1:], 0
        self._skip()

    def _skip(self) -> None:
        """Tokens up to here were format, not text."""
        self._tokens.take_until(self._end - len(self._text))
