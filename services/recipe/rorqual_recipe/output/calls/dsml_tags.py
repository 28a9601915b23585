"""Tags of DSML: `<` or `</`, the DSML mark, a word, attributes, `>`.

Both spellings are read alike, `<M calls>` and `<Mtool_calls>`, with attributes in any order, in
single or double quotes, with spaces around `=`. Names are printed without escapes, so a quote ends
a value only where another attribute or the end of the tag follows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from rorqual_recipe.output.marks import TOOL_MARK

OPENING = "<" + TOOL_MARK
CLOSING = "</" + TOOL_MARK
BLOCK_WORDS = ("calls", "tool_calls", "function_calls")
MAX_TAG_CHARS = 2048

_WORDS = (*BLOCK_WORDS, "invoke", "parameter")
_HEAD = re.compile(rf"<(/?){TOOL_MARK}[ \t\r\n]{{0,8}}([a-z_]*)")
_CLOSE = re.compile(r"[ \t\r\n]{0,8}>")
_SPACE = re.compile(r"[ \t\r\n]*")
_ATTRIBUTE = re.compile(r"([A-Za-z_]{1,16})[ \t]*=[ \t]*")
_ATTRIBUTE_BEGUN = re.compile(r"[A-Za-z_]{1,16}[ \t]*=?[ \t]*\Z")
_BARE_VALUE = re.compile(r"[^\s<>\"'=]+")
_AFTER_QUOTE = re.compile(r"\s*>|\s*(?:name|string)[ \t]*=|\s+[A-Za-z_]{1,16}[ \t]*=[ \t]*[\"']")
_AFTER_QUOTE_BEGUN = re.compile(r"\s*[A-Za-z_]{0,16}[ \t]*=?[ \t]*\Z")


class Unread(Enum):
    """Why no tag was read: the rest is still missing, or it is none."""

    MORE = auto()
    NO_TAG = auto()


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag. end: index behind its `>`."""

    word: str
    is_closing: bool
    end: int
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_block(self) -> bool:
        """True for the tag around all calls."""
        return self.word in BLOCK_WORDS

    @property
    def name(self) -> str:
        """What an opening tag is named."""
        return self.attributes.get("name", "")


def read_tag(text: str) -> Tag | Unread:
    """The tag that `text` begins with."""
    read = _read_tag(text)
    return Unread.NO_TAG if read is Unread.MORE and len(text) > MAX_TAG_CHARS else read


def _read_tag(text: str) -> Tag | Unread:
    head = _HEAD.match(text)
    if head is None:
        is_begun = OPENING.startswith(text) or CLOSING.startswith(text)
        return Unread.MORE if is_begun else Unread.NO_TAG
    is_closing, word, pos = bool(head.group(1)), head.group(2), head.end()
    if pos == len(text):
        is_begun = any(known.startswith(word) for known in _WORDS)
        return Unread.MORE if is_begun else Unread.NO_TAG
    if word not in _WORDS:
        return Unread.NO_TAG
    if not is_closing and word not in BLOCK_WORDS:
        return _read_attributes(text, pos, word)
    close = _CLOSE.match(text, pos)
    if close is not None:
        return Tag(word, is_closing, close.end())
    return Unread.MORE if not text[pos:].strip(" \t\r\n") else Unread.NO_TAG


def _read_attributes(text: str, pos: int, word: str) -> Tag | Unread:
    attributes: dict[str, str] = {}
    while True:
        pos = _end_of(_SPACE, text, pos)
        if pos == len(text):
            return Unread.MORE
        if text[pos] == ">":
            return Tag(word, False, pos + 1, attributes) if "name" in attributes else Unread.NO_TAG
        key = _ATTRIBUTE.match(text, pos)
        if key is None or key.end() == len(text):
            is_begun = _ATTRIBUTE_BEGUN.match(text, pos)
            return Unread.MORE if is_begun else Unread.NO_TAG
        value = _read_value(text, key.end())
        if isinstance(value, Unread):
            return value
        attributes.setdefault(key.group(1).lower(), value[0])
        pos = value[1]


def _read_value(text: str, pos: int) -> tuple[str, int] | Unread:
    """The value and the index behind it."""
    quote = text[pos]
    if quote not in "\"'":
        bare = _BARE_VALUE.match(text, pos)
        if bare is None:
            return Unread.NO_TAG
        return Unread.MORE if bare.end() == len(text) else (bare.group(), bare.end())
    end = text.find(quote, pos + 1)
    while end >= 0:
        if _AFTER_QUOTE.match(text, end + 1):
            return text[pos + 1 : end], end + 1
        if _AFTER_QUOTE_BEGUN.match(text, end + 1):
            return Unread.MORE
        end = text.find(quote, end + 1)
    return Unread.MORE


def _end_of(pattern: re.Pattern[str], text: str, pos: int) -> int:
    match = pattern.match(text, pos)
    return match.end() if match else pos
