"""What a store has done since it was opened, and what it owes to tell."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from rorqual_runtime.blockstore.backend import ForgetReason, ForgottenBlock, OnForgotten
from rorqual_runtime.blockstore.entries import Entry
from rorqual_runtime.logs import get_logger

log = get_logger(__name__)


class Ledger:
    """Counts, and blocks that went. Safe for threads."""

    def __init__(
        self, on_forgotten: OnForgotten | None, fingerprint_of: Callable[[bytes], str]
    ) -> None:
        self._on_forgotten = on_forgotten
        self._fingerprint_of = fingerprint_of
        self._counts: Counter[str] = Counter()
        self._gone: list[tuple[Entry, ForgetReason]] = []
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def note_gone(self, entry: Entry, reason: ForgetReason) -> None:
        """Counted now, told at the next `tell`: the caller may hold locks."""
        with self._lock:
            self._counts[reason] += 1
            if self._on_forgotten is not None:
                self._gone.append((entry, reason))

    def tell(self) -> None:
        """Say what has gone since the last time."""
        if not self._gone or self._on_forgotten is None:
            return
        with self._lock:
            gone, self._gone = self._gone, []
        blocks = [
            ForgottenBlock(self._fingerprint_of(e.name.fingerprint), e.name.key, reason)
            for e, reason in gone
        ]
        try:
            self._on_forgotten(blocks)
        except Exception:
            log.exception("nobody was told of forgotten blocks")
