"""Whether one more request may come in, and whether its body can be kept until its end."""

from collections.abc import Iterator
from contextlib import contextmanager

from rorqual_runtime.errors import Draining, RateLimited

BUSY_RETRY_AFTER_S = 1


class Admission:
    """Counts requests under way; refuses above the bound and while draining."""

    def __init__(self, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self.num_active = 0
        self.draining = False

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a place for one request. Raises: Draining, RateLimited."""
        if self.draining:
            raise Draining()
        if self.num_active >= self._max_concurrent:
            raise RateLimited(
                BUSY_RETRY_AFTER_S, f"{self._max_concurrent} requests are under way already"
            )
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1


class BodyBudget:
    """Bounds the bodies that are kept, all together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[bool]:
        """Whether there is room for one more; it counts as long as the block runs."""
        if self.num_bytes + num_bytes > self._max_bytes:
            yield False
            return
        self.num_bytes += num_bytes
        try:
            yield True
        finally:
            self.num_bytes -= num_bytes
