"""A process whose wall clock is set from outside sees the jump; its monotonic clock does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rorqual_cli.chaos.clocks import Clocks

PROGRAM = """
import sys, time
print(time.time(), time.time_ns() / 1e9, flush=True)
before_s = time.monotonic()
sys.stdin.readline()
end_s = time.monotonic() + 30
while time.time() < 5e9 and time.monotonic() < end_s:
    time.sleep(0.01)
print(time.time(), time.time_ns() / 1e9, time.monotonic() - before_s, flush=True)
"""


def test_a_jump_is_seen(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **clocks.env()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        before = [float(word) for word in process.stdout.readline().split()]
        clocks.jump(1e10)
        process.stdin.write("go\n")
        process.stdin.flush()
        after = [float(word) for word in process.stdout.readline().split()]
    assert all(seconds < 5e9 for seconds in before)
    assert all(seconds > 1e10 for seconds in after[:2])
    assert after[2] < 1e6
