"""Compiled kernels against their plain torch twins, and against themselves bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rorqual_engine.batch import Batch, SequenceChunk, lay_out
from rorqual_engine.kernels.ops import KernelOps
from rorqual_engine.kv import PagedKvCache, uniform_layout
from rorqual_engine.ops import AttentionShape
from rorqual_engine.ref import TorchOps
from rorqual_engine.rope import RopeParams, build_table

SHAPES = [
    AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64),
    AttentionShape(num_heads=4, num_kv_heads=4, head_dim=32),
    AttentionShape(num_heads=8, num_kv_heads=1, head_dim=96),
]
EPS = 1e-5


def _setup(shape: AttentionShape, chunks: list[SequenceChunk]) -> tuple[Batch, PagedKvCache]:
    cache = PagedKvCache(uniform_layout(2, 4 * shape.kv_dim), 12)
    cache.pages.fill_(0xFF)  # every bf16 a NaN: reading what was never written would show
    return lay_out(chunks, cache, vocab_size=10, max_context_tokens=1024), cache


def _ops(shape: AttentionShape) -> tuple[KernelOps, TorchOps]:
    rope = build_table(
        RopeParams(10000.0, shape.head_dim), 1024, torch.bfloat16, torch.device("cpu")
    )
    return KernelOps(shape, rope, EPS), TorchOps(shape, rope, EPS)


def _qkv(shape: AttentionShape, num_rows: int, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return (2 * torch.randn(num_rows, shape.q_dim + 2 * shape.kv_dim)).bfloat16()


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_matches_reference(shape: AttentionShape) -> None:
    fast, slow = _ops(shape)
    earlier = [SequenceChunk([1] * 300, 0, [3, 1, 7])]
    chunks = [
        SequenceChunk([1] * 45, 300, [3, 1, 7]),
        SequenceChunk([1], 0, [0]),
        SequenceChunk([1] * 130, 0, [4, 5]),
    ]
    results = []
    for ops in (fast, slow):
        batch, cache = _setup(shape, earlier)
        ops.begin(batch, cache).attend(1, _qkv(shape, batch.num_rows))
        batch = lay_out(chunks, cache, vocab_size=10, max_context_tokens=1024)
        out = ops.begin(batch, cache).attend(1, _qkv(shape, batch.num_rows, seed=1))
        results.append((out.float(), cache.pages))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0.01, atol=0.01)
    assert torch.equal(results[0][1], results[1][1]), "KV bytes differ"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_tile(shape: AttentionShape) -> None:
    """A whole chunk in tiles of six rows, and the same rows one token at a time."""
    fast, _ = _ops(shape)
    qkv = _qkv(shape, 150)
    batch, cache = _setup(shape, [SequenceChunk([1] * 150, 0, [2, 6])])
    whole = fast.begin(batch, cache).attend(0, qkv)
    pages = cache.pages.clone()
    cache.pages.fill_(0xFF)
    for row in range(150):
        batch = lay_out(
            [SequenceChunk([1], row, [2, 6])], cache, vocab_size=10, max_context_tokens=1024
        )
        single = fast.begin(batch, cache).attend(0, qkv[row : row + 1])
        assert torch.equal(single[0].view(torch.int16), whole[row].view(torch.int16)), row
    assert torch.equal(pages, cache.pages)


@pytest.mark.parametrize("num_rows", [1, 7, 33])
def test_row_kernels_equal_reference_bit_for_bit(num_rows: int) -> None:
    fast, slow = _ops(SHAPES[0])
    batch, cache = _setup(SHAPES[0], [SequenceChunk([1], 0, [0])])
    torch.manual_seed(num_rows)
    hidden = torch.randn(num_rows, 576).bfloat16()
    delta, weight = torch.randn(num_rows, 576).bfloat16(), torch.randn(576).bfloat16()
    gate_up = (4 * torch.randn(num_rows, 320)).bfloat16()
    found, expected = [], []
    for ops, results in ((fast, found), (slow, expected)):
        step = ops.begin(batch, cache)
        mutable = hidden.clone()
        results += [step.add_norm(mutable, delta, weight), mutable]
        results += [step.add_norm(mutable, None, weight), step.gate(gate_up)]
    assert torch.equal(found[1], expected[1]), "residual"
    for a, b in zip(found, expected, strict=True):
        num_differing = int((a != b).sum())
        assert num_differing <= a.numel() // 1000, "more than rare rounding ties"
        torch.testing.assert_close(a.float(), b.float(), rtol=0.01, atol=1e-6)


def test_gate_is_finite_for_extreme_values() -> None:
    fast, _ = _ops(SHAPES[0])
    batch, cache = _setup(SHAPES[0], [SequenceChunk([1], 0, [0])])
    extremes = torch.tensor([-3e38, -100.0, -88.0, 0.0, 88.0, 100.0, 3e38, 1.0] * 4)
    gate_up = torch.cat([extremes, torch.ones(32)])[None].bfloat16()
    out = fast.begin(batch, cache).gate(gate_up)[0].float().numpy()
    assert np.isfinite(out).all()
    assert out[3] == 0 and out[1] == pytest.approx(0, abs=1e-30) and out[5] == 100
