"""Python itself loads this where it is on the path: the wall clock is off by what a file says."""

import os
import time

LOOK_S = 0.2
_true_time, _true_time_ns, _monotonic = time.time, time.time_ns, time.monotonic
_path = os.environ.get("CHAOS_CLOCK_FILE", "")
_offset_s = 0.0
_next_look_s = 0.0


def offset_s() -> float:
    """How far from the true time; the file is read now and then."""
    global _offset_s, _next_look_s
    now_s = _monotonic()
    if now_s >= _next_look_s:
        _next_look_s = now_s + LOOK_S
        try:
            with open(_path) as file:  # noqa: PTH123 (runs in every process: nothing is imported)
                _offset_s = float(file.read() or 0)
        except (OSError, ValueError):
            _offset_s = 0.0
    return _offset_s


def _time() -> float:
    return _true_time() + offset_s()


def _time_ns() -> int:
    return _true_time_ns() + int(offset_s() * 1e9)


if _path:
    time.time, time.time_ns = _time, _time_ns
