"""The scaler's local driver adds a decode under load and takes it away when the load is gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.e2e.chat import MODEL
from tests.support.fleet import FleetFactory, RunningFleet


def _num_ready(running: RunningFleet, service: str) -> int:
    return sum(
        1 for i in running.instances() if i.load and i.load.service == service and i.ready
        and not i.load.draining
    )  # fmt: skip


def _ask(running: RunningFleet, index: int) -> int:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Story {index}"}],
        "max_tokens": 600,
        "ignore_eos": True,
        "temperature": 0,
    }
    answer = httpx.post(f"{running.base_url}/v1/chat/completions", json=body, timeout=110)
    return answer.status_code


def _wait_for(running: RunningFleet, num_decode: int, timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while (found := _num_ready(running, "decode")) != num_decode:
        assert time.monotonic() < end_s, f"{found} decode instances, not {num_decode}"
        time.sleep(0.3)


def test_decode_scales_out_and_in_within_bounds_and_loses_nothing(fleet: FleetFactory) -> None:
    running = fleet(
        max_instances={"decode": 2},
        env={
            "RORQUAL_DECODE_MAX_RUNNING": "4",
            "RORQUAL_SCALER_UP_AFTER_S": "1",
            "RORQUAL_SCALER_DOWN_AFTER_S": "2",
            "RORQUAL_SCALER_WINDOW_S": "3",
        },
    )
    _wait_for(running, 1, timeout_s=60)
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(_ask, running, index) for index in range(12)]
        _wait_for(running, 2, timeout_s=60)
        assert [answer.result() for answer in answers] == [200] * 12
    _wait_for(running, 1, timeout_s=60)
