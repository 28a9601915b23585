"""A run that is told to end cleans up behind itself."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import pytest
from rorqual_cli.chaos import run
from rorqual_cli.chaos.run import ENDED, ChaosOptions, run_chaos


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_opened_is_closed_on_a_signal(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    closed = []

    async def run_for_ever(*_: Any) -> int:
        os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0)
            closed.append("fleet")
        return 0

    monkeypatch.setattr(run, "_run", run_for_ever)
    options = ChaosOptions(Path(), "m", seed=0, seconds=1.0, every_s=1.0, num_clients=1)
    assert run_chaos(options, cast(Any, None)) == ENDED
    assert closed == ["fleet"]
