"""Which kernel runs where; and that drafts, checked by the twins, change no distribution."""

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
from rorqual_engine.ref.noise import DRAFT, uniforms
from rorqual_engine.ref.verify import verify_drafts
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


@pytest.mark.parametrize("is_certain", [False, True])
def test_drafts_change_no_distribution(is_certain: bool) -> None:
    """Two drafts and the token after them: pairs come out as the target alone draws them."""
    torch.manual_seed(1)
    vocab, count = 4, 6000
    target = torch.randn(vocab, vocab)  # logits of the next token, by the last one
    draft = torch.softmax(target + torch.randn(vocab, vocab), -1)
    seeds, start = torch.arange(count), 1
    noise = uniforms(seeds, torch.full((count,), 5), DRAFT)
    first = torch.searchsorted(draft[start].double().cumsum(0), noise).clamp_max(vocab - 1)
    if is_certain:
        first = draft[start].argmax().expand(count)
    rows = torch.stack([torch.full((count,), start), first], 1).flatten()
    states = [SamplingState(1.0, seed=s, position=p) for s in range(count) for p in (5, 6)]
    starts = torch.arange(0, 2 * count + 1, 2, dtype=torch.int32)
    drafts = torch.stack([first, torch.zeros_like(first)], 1).flatten()
    given = None if is_certain else draft[rows]
    choices = RowChoices.of(states, "cpu")
    accepted, tokens = verify_drafts(target[rows], drafts, given, starts, choices)
    wanted = torch.softmax(target, -1)
    firsts = torch.where(accepted == 1, first, tokens)
    shares = torch.bincount(firsts, minlength=vocab) / count
    assert (shares - wanted[start]).abs().max() < 0.02
    for token in range(vocab):
        after = tokens[(accepted == 1) & (first == token)]
        if len(after) > 1500:
            shares = torch.bincount(after, minlength=vocab) / len(after)
            assert (shares - wanted[token]).abs().max() < 0.04
    assert 0.2 < (accepted == 1).float().mean() < 0.98
