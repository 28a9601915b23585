"""Every kernel against its twin, on the accelerator."""

from __future__ import annotations

import pytest
import torch
from rorqual_engine.kernels.registry import TOPICS, available
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.sampling import SamplingState, sample

from tests.support.kernel_cases import CASES, Kernels


@pytest.mark.parametrize("name", sorted(CASES))
def test_case(name: str, device: str) -> None:
    torch.manual_seed(0)
    CASES[name](Kernels(device))


@pytest.mark.parametrize("op", sorted(TOPICS))
def test_triton_is_what_runs_here(op: str, device: str) -> None:
    assert available(op, device)[0] == "triton"


def test_tokens_of_a_whole_vocabulary_are_those_of_the_cpu(device: str) -> None:
    torch.manual_seed(0)
    logits = 4 * torch.randn(64, 129280)
    states = [
        SamplingState(0.7 + row % 3 / 2, 0.95, (row % 4) * 20, 0.02 * (row % 2), row, 3 * row)
        for row in range(64)
    ]
    expected = sample(logits, states).ids.tolist()
    choices = RowChoices.of(states, device)
    kernels = Kernels(device)
    assert kernels("choose_tokens")(logits.to(device), choices).tolist() == expected
    # sampling itself takes rows that lie on the device.
    assert sample(logits.to(device), states).ids.tolist() == expected


def test_published_shapes(device: str) -> None:
    """Heads of 512 dimensions, 384 experts: what the interpreter is too slow for."""
    torch.manual_seed(0)
    kernels = Kernels(device)
    x = kernels.randn(40, 5120, dtype=torch.bfloat16)
    gate_up = 0.02 * kernels.randn(24, 5120, 2 * 2304, dtype=torch.bfloat16)
    down = 0.02 * kernels.randn(24, 2304, 5120, dtype=torch.bfloat16)
    experts = torch.rand(40, 24).argsort(-1)[:, :6].to(device)
    given = (x, experts, torch.rand(40, 6).to(device), gate_up, down)
    found = kernels("run_experts")(*given, clamp=10.0)
    expected = kernels.twin("run_experts")(*given, clamp=10.0)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    places = kernels.places([(260, 3), (4, 1)])
    rows = places.num_rows
    query, fresh = (kernels.randn(rows, *s, dtype=torch.bfloat16) for s in ((64, 512), (512,)))
    ring, angles = kernels.randn(6, 256, 512, dtype=torch.bfloat16), kernels.randn(rows, 32)
    entries = kernels.paged(8, 512, torch.bfloat16)
    chosen = torch.arange(200).expand(rows, -1).to(device)
    chosen = torch.where(chosen <= places.positions[:, None], chosen, -1)
    attended = (query, fresh, ring, entries, chosen, kernels.randn(64), angles.cos(), angles.sin())
    found = kernels("attend_entries")(*attended, places, window=128)
    expected = kernels.twin("attend_entries")(*attended, places, window=128)
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)
