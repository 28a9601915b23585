"""Where a text may be cut so that its pieces, encoded one by one, give the ids of the whole.

A byte-level BPE never merges across pre-tokens, so a cut is safe where a pre-token certainly ends
and where what stands behind the cut changes nothing before it. Both are shown here for each known
pattern, from the two characters around the cut alone:

- SPACE, a non-space before U+0020. Every pattern takes a space first in a match or inside a run of
  white space, never behind another character. Only `\\s+(?!\\S)` looks ahead, and it ends with
  white space, so no match that ends at the cut has looked behind it.
- MARK, an ASCII letter before ASCII punctuation other than the apostrophe. Runs of letters end
  there in every pattern; only the apostrophe can continue a match (`'s` behind a word).
- HAN, a Chinese character before Chinese punctuation: as MARK, in letters of category Lo.
- LINE, a line feed before a non-space, where a pattern has `\\s*[\\r\\n]+`: that takes white space
  up to the last line end whatever follows, and nothing goes on behind a line end.
- BEFORE_LINE, a non-space before a line feed, where a pattern has no line ends of its own (GPT-2).

Patterns with `[\\r\\n/]*` have no LINE: a slash may follow a line end there. Stages before such a
pattern that isolate digits or Chinese cut within its pieces only, which takes nothing away. NFC
changes neither side: no character behind a cut composes with one before it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rorqual_recipe.tokens import patterns
from rorqual_recipe.tokens.patterns import known_pattern

SPACE = r"(?<=\S) "
MARK = r"(?<=[A-Za-z])[!-&(-/:-@\[-`{-~]"
HAN = "(?<=[\u4e00-\u9fa5])[，。、；：？！（）「」《》]"
LINE = r"(?<=\n)\S"
BEFORE_LINE = r"(?<=\S)\n"
_EVERYWHERE = (SPACE, MARK, HAN)
_SEARCHED_SHARE = 8
_LEAST_SEARCHED = 256  # characters

CUTS_BY_PATTERN: Mapping[str, Sequence[str]] = {
    patterns.GPT2: (*_EVERYWHERE, BEFORE_LINE),
    patterns.CL100K: (*_EVERYWHERE, LINE),
    patterns.QWEN2: (*_EVERYWHERE, LINE),
    patterns.QWEN3_5: (*_EVERYWHERE, LINE),
    patterns.O200K: _EVERYWHERE,
    patterns.TEKKEN: _EVERYWHERE,
    patterns.DEEPSEEK: (*_EVERYWHERE, LINE),
}
_ISOLATING_PATTERNS = frozenset(
    (r"\p{N}", r"\p{N}+", patterns.DEEPSEEK_DIGITS, patterns.DEEPSEEK_CJK)
)


@dataclass(frozen=True, slots=True)
class CutRule:
    """Safe cuts of one pre-tokeniser. cut: matches the character behind each of them."""

    cut: re.Pattern[str]

    def pieces(self, text: str, piece_chars: int) -> list[str]:
        """The text in pieces of at least piece_chars, and little more where cuts are frequent.

        Texts that begin alike have the same first pieces. Only a part of the text is searched, so
        that one without cuts costs little.
        """
        bounds = [0, *self._bounds(text, piece_chars), len(text)]
        return [text[start:end] for start, end in pairwise(bounds)]

    def _bounds(self, text: str, piece_chars: int) -> Iterator[int]:
        window = max(piece_chars // _SEARCHED_SHARE, _LEAST_SEARCHED)
        at = piece_chars
        while at < len(text):
            match = self.cut.search(text, at, at + window)
            if match is not None:
                at = match.start()
                yield at
            at += piece_chars


def find_cut_rule(tokenizer: Mapping[str, Any]) -> CutRule | None:
    """The safe cuts of a tokenizer.json; None when they aren't known for all of its parts."""
    if not (_is_plain_bpe(tokenizer["model"]) and _keeps_cuts(tokenizer.get("normalizer"))):
        return None
    stages = list(_flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if not all(map(_is_known, stages)):
        return None
    for stage in stages:
        if kinds := _cuts_of(stage):
            return CutRule(re.compile("|".join(kinds)))
        if stage["type"] == "ByteLevel":
            return None  # what follows no longer sees the text's own characters
    return None


def _is_plain_bpe(model: Mapping[str, Any]) -> bool:
    marks = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    return model.get("type") == "BPE" and not any(model.get(mark) for mark in marks)


def _keeps_cuts(normalizer: Mapping[str, Any] | None) -> bool:
    return all(stage.get("type") == "NFC" for stage in _flat(normalizer, "normalizers"))


def _flat(stage: Mapping[str, Any] | None, members: str) -> Iterator[Mapping[str, Any]]:
    if stage is None:
        return
    if stage.get("type") != "Sequence":
        yield stage
        return
    for member in stage[members]:
        yield from _flat(member, members)


def _is_known(stage: Mapping[str, Any]) -> bool:
    """True for stages that work on each piece of text alone and keep or make the cuts."""
    kind = stage.get("type")
    if kind == "Split":
        pattern = known_pattern(stage)
        isolates = stage.get("behavior") == "Isolated" and not stage.get("invert")
        return isolates and (pattern in _ISOLATING_PATTERNS or pattern in CUTS_BY_PATTERN)
    return kind == "Digits" or (kind == "ByteLevel" and not stage.get("add_prefix_space", True))


def _cuts_of(stage: Mapping[str, Any]) -> Sequence[str]:
    """The cuts that a known stage makes certain; none for one that only keeps them."""
    if stage["type"] == "ByteLevel":
        return CUTS_BY_PATTERN[patterns.GPT2] if stage.get("use_regex", True) else ()
    return CUTS_BY_PATTERN.get(known_pattern(stage), ())
