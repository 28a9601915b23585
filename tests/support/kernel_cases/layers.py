"""Residual streams and experts."""

from __future__ import annotations

import torch

from tests.support.kernel_cases.harness import (
    Kernels,
    case,
    check_bits,
    check_close,
)


@case
def streams_are_mixed_as_by_the_twin(kernels: Kernels) -> None:
    for num_rows, n, width, dtype in ((19, 4, 40, torch.float32), (1, 2, 9, torch.bfloat16)):
        streams = kernels.randn(num_rows, n, width, dtype=dtype)
        fn = 0.1 * kernels.randn((2 + n) * n, n * width)
        base, scale = kernels.randn((2 + n) * n), kernels.randn(3)
        sizes = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20}
        found = kernels("mix_streams")(streams, fn, base, scale, **sizes)
        expected = kernels.twin("mix_streams")(streams, fn, base, scale, **sizes)
        for a, b in zip(found, expected, strict=True):
            check_close(a, b)
        alone = kernels("mix_streams")(streams[-1:], fn, base, scale, **sizes)
        for a, b in zip(alone, found, strict=True):
            check_bits(kernels, a[0], b[-1])
        pre, post, comb = expected
        check_close(
            kernels("collapse_streams")(streams, pre),
            kernels.twin("collapse_streams")(streams, pre),
        )
        output = kernels.randn(num_rows, width + 1, dtype=dtype)[:, 1:]
        given = (streams, output, post, comb)
        check_close(kernels("expand_streams")(*given), kernels.twin("expand_streams")(*given))
    assert kernels("collapse_streams")(streams[:0], pre[:0]).shape == (0, 9)


@case
def experts_equal_their_twin(kernels: Kernels) -> None:
    for num_rows, dtype in ((21, torch.float32), (3, torch.bfloat16)):
        x = kernels.randn(num_rows, 40, dtype=dtype)
        gate_up = (0.3 * kernels.randn(5, 2 * 28, 40, dtype=dtype)).transpose(1, 2)
        down = 0.3 * kernels.randn(5, 28, 40, dtype=dtype)
        experts = torch.randint(-1, 4, (num_rows, 3)).to(kernels.device)
        experts[0] = -1
        experts[:, 2] = 4
        weights = torch.rand(num_rows, 3).to(kernels.device)
        given = (x, experts, weights, gate_up, down)
        found = kernels("run_experts")(*given, clamp=2.0)
        check_close(found, kernels.twin("run_experts")(*given, clamp=2.0), _loose(dtype))
        last = (x[-1:], experts[-1:].int(), weights[-1:], gate_up, down)
        check_bits(kernels, kernels("run_experts")(*last, clamp=2.0)[0], found[-1])
    nobody = torch.full_like(experts, -1)
    assert not kernels("run_experts")(x, nobody, weights, gate_up, down, clamp=2.0).any()
    none = (x[:0], experts[:0], weights[:0], gate_up, down)
    assert kernels("run_experts")(*none, clamp=2.0).shape == (0, 40)


def _loose(dtype: torch.dtype) -> float:
    return 0.03 if dtype == torch.bfloat16 else 1e-5
