"""Device kernels without a device: interpreted against their twins, and compiled for GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.kernel_cases import CASES

SHARED_BYTES = 99 << 10
"""What the smallest GPUs since 2020 give one program (compute capability 8.6 and 8.9)."""
_TIMEOUT_S = 280
"""It takes half a minute of one core's time."""


def _run(module: str, *args: str) -> Any:
    """Output of a module in a process of its own, where triton is not imported yet."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    done = subprocess.run(
        [sys.executable, "-m", f"tests.support.{module}", *args],
        env=env, capture_output=True, text=True, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, Any]]:
    return _run("interpret_kernels")


@pytest.mark.parametrize("name", sorted(CASES))
def test_interpreted(name: str, interpreted: dict[str, dict[str, Any]]) -> None:
    error = interpreted[name]["error"]
    assert not error, error


def test_every_kernel_compiles_for_a_gpu_and_fits_it() -> None:
    found = _run("compile_kernels", "90")
    assert len(found) == 17
    assert not {name: size for name, size in found.items() if size > SHARED_BYTES}


def test_a_model_on_interpreted_kernels_gives_the_cpus_logits() -> None:
    assert max(_run("interpret_model")) < 1e-4
