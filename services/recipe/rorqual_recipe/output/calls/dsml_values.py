"""Where the value of a DSML parameter ends."""

from rorqual_recipe.output.calls.dsml_tags import CLOSING, OPENING, Unread, read_tag

BLANK = " \t\r\n"
MAX_BLANKS = 4096
"""Blanks are waited through up to this many; more of them are no part of anything."""

_GOES_ON, _UNDECIDED = -1, -2


def split_value(text: str) -> tuple[int, int | None]:
    """(characters certain to be the value, index where the markup goes on; None = not yet).

    A closing tag counts when a tag follows it; the end of a call also closes its last value. So a
    value may hold closing tags, as text about this very format does.
    """
    start = text.find(CLOSING)
    while start >= 0:
        end = _end_of_closing(text, start)
        if end == _UNDECIDED:
            return start, None
        if end != _GOES_ON:
            return start, end
        start = text.find(CLOSING, start + len(CLOSING))
    for beginning in (CLOSING[:2], CLOSING[:1]):
        if text.endswith(beginning):
            return len(text) - len(beginning), None
    return len(text), None


def closed_at_end(text: str) -> int | None:
    """For the rest of a value at the end of the answer: where its closing tag ends, if it has one.

    A closing tag cut off counts as one.
    """
    tag = read_tag(text) if text.startswith(CLOSING) else Unread.NO_TAG
    if isinstance(tag, Unread):
        return len(text) if tag is Unread.MORE else None
    return tag.end if tag.word == "parameter" else 0


def _end_of_closing(text: str, start: int) -> int:
    tag = read_tag(text[start:])
    if isinstance(tag, Unread):
        return _UNDECIDED if tag is Unread.MORE else _GOES_ON
    end = start + tag.end
    following = text[end:].lstrip(BLANK)
    if not following and len(text) - end < MAX_BLANKS:
        return _UNDECIDED
    if tag.is_block:
        return _GOES_ON
    if following and not following.startswith((OPENING, CLOSING)):
        is_begun = OPENING.startswith(following) or CLOSING.startswith(following)
        return _UNDECIDED if is_begun else _GOES_ON
    return end if tag.word == "parameter" else start
