"""Which kernel runs where."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from rorqual_engine.kernels.registry import (
    TOPICS,
    KernelChoice,
    UnknownKernel,
    available,
    find_kernel,
)
from rorqual_engine.ref.choice import RowChoices, choose_tokens
from rorqual_engine.sampling import SamplingState, sample


@pytest.mark.parametrize("op", sorted(TOPICS))
def test_every_device_has_every_operation(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert available(op, "cuda") == ("triton", "twin")
    assert available(op, "npu") == ("twin", "triton")
    assert available(op, "meta") == ("twin",)
    assert "triton" not in available(op, "cpu")
    assert callable(find_kernel(op, "cpu"))


def test_without_triton_a_gpu_runs_the_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rorqual_engine.kernels.registry.find_spec", lambda name: None)
    assert available("best_entries", "cuda") == ("twin",)


def test_choice_by_operation_outranks_the_general_one() -> None:
    choice = KernelChoice.parse(" twin , choose_tokens=numba,best_entries=auto")
    assert choice.wanted("mix_streams") == "twin"
    assert choice.wanted("choose_tokens") == "numba"
    assert choice.wanted("best_entries") is None
    assert find_kernel("choose_tokens", "cpu", choice).__module__.endswith("choose_rows")
    assert find_kernel("mix_streams", "cuda", choice).__module__.endswith("ref.streams")
    assert KernelChoice.parse("auto") == KernelChoice.parse("") == KernelChoice()


@pytest.mark.parametrize("text", ["fast", "choose_tokens=fast", "sleep=twin", "=triton,x"])
def test_unknown_choices_are_named(text: str) -> None:
    with pytest.raises(UnknownKernel, match="known are"):
        KernelChoice.parse(text)


def test_a_kernel_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnknownKernel, match="triton of run_experts on cpu; known are twin"):
        find_kernel("run_experts", "cpu", KernelChoice(everywhere="triton"))
    with pytest.raises(UnknownKernel):
        find_kernel("sleep", "cpu")


def test_services_on_a_cpu_never_import_triton() -> None:
    code = (
        "import sys, rorqual_prefill.wiring, rorqual_decode.wiring, rorqual_engine.runner\n"
        "from rorqual_engine.kernels.registry import TOPICS, find_kernel\n"
        "for op in TOPICS: find_kernel(op, 'cpu')\n"
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_tokens_of_the_cpu_kernel_are_those_of_sampling() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(200, 300)
    states = [
        SamplingState((row % 5) / 2, 1.0 - row % 3 / 4, row % 4 * 9, row % 2 / 10, 2**64 - row, row)
        for row in range(200)
    ]
    expected = sample(logits, states).ids.tolist()
    choices = RowChoices.of(states, "cpu")
    assert find_kernel("choose_tokens", "cpu")(logits, choices).tolist() == expected
    assert choose_tokens(logits, choices).tolist() == expected
