"""What can go wrong for a person at a terminal: one line, a remedy, an exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script can tell failures apart by."""

    FAILED = 1
    PORT_BUSY = 3
    ALREADY_RUNNING = 4
    MISSING_BINARY = 5
    TOO_LITTLE_ROOM = 6
    NOT_RUNNING = 7


class CliError(Exception):
    """A failure that the person can act on."""

    def __init__(
        self, message: str, remedy: str = "", exit_code: ExitCode = ExitCode.FAILED
    ) -> None:
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code
        super().__init__(f"{message}; {remedy}" if remedy else message)
