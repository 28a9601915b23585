"""Time between two forwards counts while something runs, and not when there is nothing to run."""

from __future__ import annotations

from rorqual_decode.forward_clock import ForwardClock, ForwardTimes


def test_rest_is_no_waiting() -> None:
    moments = iter([0.0, 4.0, 5.0, 7.0, 100.0, 103.0, 103.5, 104.0])
    clock = ForwardClock(lambda: next(moments))
    before = clock.times
    for _ in range(2):
        clock.begin()
        clock.end()
    assert clock.times.since(before) == ForwardTimes(6.0, 1.0)
    clock.rest()
    for _ in range(2):
        clock.begin()
        clock.end()
    assert clock.times == ForwardTimes(9.5, 1.5)
