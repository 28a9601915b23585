"""random-v41 with its experts in two processes an instance: what its engine says alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from rorqual_engine.models import load_model
from rorqual_engine.runner import BareEngine, GenerationParams

from tests.e2e.test_v41_equality import NUM_TOKENS, Client, seen
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.model import random_v41_dir
from tests.support.waiting import WAIT_S, until_blocking

LENGTHS = (1, 100, 150, 515)
UP_TO_A_WINDOW = slice(2)
"""Those whose answers end within a window of tokens: computed again, they are the same."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    env = {"RORQUAL_EXPERT_RANKS": "2", "RORQUAL_EXPERT_INTERVAL_S": "3"}
    options = {"restart": True, "env": env}
    home = tmp_path_factory.mktemp("ranks")
    with running_fleet(home, model=str(random_v41_dir()), **options) as running:
        yield running


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    random = np.random.default_rng(7)
    return [random.integers(3, 4000, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(prompts: list[list[int]]) -> list[list[int]]:
    """By the engine alone, in one process."""
    engine = BareEngine(load_model(random_v41_dir()), num_pages=16)
    params = GenerationParams(NUM_TOKENS, ignore_eos=True)
    return [seen(engine.generate([prompt], params)[0]) for prompt in prompts]


def _workers(pid: int) -> list[int]:
    """Its processes that hold experts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            command = (path.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and b"rorqual_engine.expert_worker" in command:
            found.append(int(path.parent.name))
    return found


def _ask_all(running: RunningFleet, prompts: list[list[int]]) -> list[list[int]]:
    with (
        httpx.Client(base_url=running.base_url, timeout=60) as http,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        return [answer.output_ids for answer in pool.map(Client(http).ask, prompts)]


def test_two_ranks_say_what_one_says(
    fleet: RunningFleet, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    for name in ("prefill-1", "decode-1"):
        assert len(_workers(fleet.pids[name])) == 1
        assert "experts are shared" in fleet.log(name)
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert _ask_all(fleet, [prompt]) == [tokens]
    until_blocking(lambda: "experts re-placed" in fleet.log("prefill-1"))
    assert _ask_all(fleet, prompts) == expected


@contextmanager
def _losing_a_rank_in_a_step(fleet: RunningFleet, name: str) -> Iterator[None]:
    """A step waits for a worker that stands still, until that is killed."""
    pid = fleet.pids[name]
    (worker,) = _workers(pid)
    os.kill(worker, signal.SIGSTOP)
    killing = threading.Timer(1.0, os.kill, (worker, signal.SIGKILL))
    killing.start()
    yield
    killing.join()
    fleet.wait_ready(name)
    assert fleet.pids[name] != pid
    assert "rank 0 of 2 lost its group" in fleet.log(name)


@pytest.mark.parametrize("name", ["prefill-1", "decode-1"])
def test_answers_outlive_a_rank(
    fleet: RunningFleet, prompts: list[list[int]], expected: list[list[int]], name: str
) -> None:
    """The instance ends and starts again; its work is done again there or elsewhere."""
    with _losing_a_rank_in_a_step(fleet, name):
        assert _ask_all(fleet, prompts[UP_TO_A_WINDOW]) == expected[UP_TO_A_WINDOW]


def test_the_workers_of_a_killed_instance_end(fleet: RunningFleet) -> None:
    (worker,) = _workers(fleet.pids["decode-1"])
    fleet.kill("decode-1")
    end_s = time.monotonic() + WAIT_S
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)
