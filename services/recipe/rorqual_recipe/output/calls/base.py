"""What a format of tool calls is: text behind an opening mark in, calls out."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

TextSink = Callable[[str], None]


class CallSink(Protocol):
    """Where a format puts what it reads.

    Between begin and end only arguments follow; what is no call goes to `text`, whole.
    """

    def knows(self, name: str) -> bool:
        """True when there is such a tool."""
        ...

    def begin(self, name: str) -> None:
        """A call of a known tool begins."""
        ...

    @property
    def is_custom(self) -> bool:
        """True when the begun call takes free text instead of a JSON object."""
        ...

    def takes_text(self, parameter: str) -> bool | None:
        """Whether the begun call's parameter is declared a string; None when nothing says."""
        ...

    def arguments(self, text: str) -> None:
        """More of the begun call's arguments."""
        ...

    def end(self, problem: str | None = None, *, is_cut: bool = False) -> None:
        """The begun call is over."""
        ...

    def text(self, text: str) -> None:
        """Text, marks included, that belongs to no call."""
        ...

    def warn(self, message: str) -> None:
        """Tell the caller about malformed markup."""
        ...


class CallFormat(Protocol):
    """One grammar of tool calls. An instance reads one answer.

    marks: spelling of each mark the grammar uses. opening: what every first call begins with.
    opens_content: characters that, as the very first of the content, may begin a call too.
    """

    marks: ClassVar[Mapping[str, str]]
    opening: ClassVar[str]
    opens_content: ClassVar[str]

    def __init__(self, sink: CallSink) -> None: ...

    @property
    def num_held(self) -> int:
        """Characters taken in and not yet decided upon."""
        ...

    @property
    def text_sink(self) -> TextSink | None:
        """Takes text without `<` and marks in place of `feed`, for as long as only that comes.

        None when the next character may be more than a string's text.
        """
        ...

    def open(self, lead: str) -> None:
        """Text that begins like a call comes next; `lead` is the line breaks before it."""
        ...

    def open_inside(self) -> None:
        """The prompt has opened the block already."""
        ...

    def feed(self, text: str) -> str | None:
        """More text. None while calls may follow; else what is beyond them."""
        ...

    def finish(self, *, is_cut: bool) -> None:
        """The answer ends here. is_cut: it would have gone on."""
        ...
