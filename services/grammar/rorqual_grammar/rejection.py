"""Why a constraint can't be compiled, as it travels from the sandbox to the caller."""

from __future__ import annotations

import re

_SOURCE_POSITION = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\) is \w+: )?")


class BadConstraint(Exception):
    """The constraint can't be compiled; the text is for the caller.

    param: the caller's field where a part of the constraint knows it. language: of that part.
    """

    def __init__(self, text: str, *, param: str = "", language: str = "") -> None:
        self.text, self.param, self.language = text, param, language
        super().__init__(text)


class UnenforceableConstraint(BadConstraint):
    """Valid, but the answer could still break it."""


def clean_text(error: Exception) -> str:
    """The compiler's words without its own file and line."""
    return _SOURCE_POSITION.sub("", str(error)).strip()
