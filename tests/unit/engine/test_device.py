"""Thread settings hold in the process that asks for them, and nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, threading
before = dict(os.environ)
from rorqual_engine.device import configure_threads
num = configure_threads({num})
import torch
bound = []
def work():
    torch.randn(600, 600) @ torch.randn(600, 600)
    bound.append(len(os.sched_getaffinity(0)))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps({{"num": num, "env_kept": before == dict(os.environ), "bound": bound[0],
                  "main": len(os.sched_getaffinity(0))}}))
"""


def configured(num: int | None, **env: str) -> dict[str, int]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(num=num)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_one_thread_a_cpu_each_on_its_own() -> None:
    cpus = len(os.sched_getaffinity(0))
    found = configured(None)
    assert found == {"num": cpus, "env_kept": True, "bound": 1, "main": cpus}


def test_fewer_threads_than_cpus_stay_free_to_move() -> None:
    cpus = len(os.sched_getaffinity(0))
    if cpus == 1:
        pytest.skip("one CPU: there are no fewer threads than CPUs")
    found = configured(cpus - 1)
    assert found == {"num": cpus - 1, "env_kept": True, "bound": cpus, "main": cpus}


def test_the_operators_setting_wins() -> None:
    assert configured(None, OMP_NUM_THREADS="1")["num"] == 1
