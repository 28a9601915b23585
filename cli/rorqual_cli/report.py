"""Progress for a person: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.status import Status


class Reporter(Protocol):
    """Where a fleet says what it is doing."""

    def say(self, text: str) -> None:
        """One line that stays."""
        ...

    def waiting(self, text: str) -> None:
        """What is being waited for now; empty = nothing."""
        ...


class PlainReporter:
    """Lines, on stdout where nothing else is said; repeated waiting lines are left out."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def waiting(self, text: str) -> None:
        return


class RichReporter:
    """Lines and a spinner on a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._status: Status | None = None

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def waiting(self, text: str) -> None:
        if not text:
            if self._status is not None:
                self._status.stop()
                self._status = None
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)


def make_reporter() -> Reporter:
    """Rich on a terminal, plain lines otherwise."""
    return RichReporter() if sys.stdout.isatty() else PlainReporter()
