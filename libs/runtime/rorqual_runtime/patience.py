"""How long one request goes on."""

from __future__ import annotations

import asyncio
import time

REJOIN_S = 10.0
"""After the broker was away, everybody has this long to come back; nobody counts as gone before."""
AGAIN_S = 3.5
"""When a question that may be asked twice is asked again: whoever was cut off has been dropped by
the broker then, and gets it no more."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.005, 0.25


class Patience:
    """Bounds of one request, in monotonic seconds.

    timeout_s bounds the answer, absent_s the wait for somebody who serves the subject. Unless
    outage_s is None, the time without a broker does not count, up to that much; once it is back, or
    if it was away until just now, both bounds begin anew, and are REJOIN_S at least.
    """

    def __init__(self, timeout_s: float, absent_s: float, outage_s: float | None = None) -> None:
        self.timeout_s = timeout_s
        self._absent_s = absent_s
        self._outage_s = outage_s
        self._end_s = time.monotonic() + timeout_s + (outage_s or 0.0)
        self._answer_until_s = self._absent_until_s = 0.0
        self._pause_s = FIRST_BACKOFF_S
        self._begin(timeout_s, absent_s)

    @property
    def left_s(self) -> float:
        """For an answer, as things are."""
        return max(0.0, self._answer_until_s - time.monotonic())

    @property
    def broker_left_s(self) -> float:
        """For a broker to come back."""
        left_s = max(0.0, self._end_s - time.monotonic())
        return min(left_s, self._outage_s) if self._outage_s else left_s

    def broker_is_back(self) -> None:
        """It was away: whoever was asked has to be asked again, and may not be back yet."""
        least_s = 0.0 if self._outage_s is None else REJOIN_S
        self._begin(max(self.timeout_s, least_s), max(self._absent_s, least_s))

    async def pause(self) -> bool:
        """Wait a little, longer each time, for somebody to serve the subject; False when it is no
        use."""
        left_s = min(self._absent_until_s, self._answer_until_s) - time.monotonic()
        if left_s <= self._pause_s:
            return False
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, MAX_BACKOFF_S)
        return True

    def _begin(self, timeout_s: float, absent_s: float) -> None:
        now_s = time.monotonic()
        self._answer_until_s = min(self._end_s, now_s + timeout_s)
        self._absent_until_s = now_s + absent_s
        self._pause_s = FIRST_BACKOFF_S
