"""The fused attention has the values and the gradients of the plain formula."""

from __future__ import annotations

import pytest
import torch

from training.tiny_v41.model.attention import HIDDEN, attend
from training.tiny_v41.model.streams import Mix, read, write

WINDOW = 128


def plain(
    query: torch.Tensor, kv: torch.Tensor, sinks: torch.Tensor, far: torch.Tensor,
    mask: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    places = torch.arange(kv.shape[1])
    distance = places[:, None] - places
    is_near = (distance >= 0) & (distance < WINDOW)
    near = torch.zeros(is_near.shape).masked_fill(~is_near, HIDDEN)
    keys = torch.cat([kv, far], dim=1)
    scores = torch.einsum("bshd,bkd->bhsk", query, keys) * query.shape[-1] ** -0.5
    scores = scores + torch.cat([near.expand(len(kv), -1, -1), mask], dim=-1)[:, None]
    sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
    shares = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("bhsk,bkd->bshd", shares, keys)


@pytest.mark.parametrize("length", [64, 192, 328])
def test_attention_is_one_softmax_over_window_entries_and_sink(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    shapes = ((2, length, 4, 32), (2, length, 32), (4,), (2, 50, 32))
    values = [torch.randn(shape, generator=generator) for shape in shapes]
    mask = torch.where(torch.rand((2, length, 50), generator=generator) < 0.3, 0.0, HIDDEN)
    mask[:, :5] = HIDDEN
    direction = torch.randn(shapes[0], generator=generator)
    found = []
    for is_plain in (True, False):
        given = [value.clone().requires_grad_() for value in values]
        if is_plain:
            output = plain(*given, mask)
        else:
            output, _ = attend(*given[:3], WINDOW, given[3], mask)
        output.backward(direction)
        found.append([output.detach(), *(value.grad for value in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_mixing_of_streams_has_the_gradients_of_its_values() -> None:
    generator = torch.Generator().manual_seed(0)
    n, hidden, rows = 4, 16, 20
    shapes = {"hc_attn_fn": (24, n * hidden), "hc_attn_base": (24,), "hc_attn_scale": (3,)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["attn_norm.weight"] = torch.randn((hidden,), generator=generator)
    streams = torch.randn((rows, n, hidden), generator=generator)
    pre = torch.rand((rows, n), generator=generator)

    def value(given: dict[str, torch.Tensor], streams: torch.Tensor) -> torch.Tensor:
        x, mix = read(streams, pre, given, "attn", eps=1e-6, hc_eps=1e-6, iterations=20)
        written = write(streams, x, Mix(mix.pre, mix.post, mix.comb))
        return (written.sin() * mix.pre[:, :, None]).sum()

    learned = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    begun = streams.clone().requires_grad_()
    value(learned, begun).backward()
    for name, start in {**weights, "": streams}.items():
        grad = begun.grad if not name else learned[name].grad
        assert grad is not None
        step = torch.randn(start.shape, generator=generator)
        step *= 1e-2 / step.norm()
        ends = []
        for sign in (1, -1):
            moved = {**weights, name: start + sign * step} if name else weights
            ends.append(float(value(moved, streams if name else start + sign * step)))
        wanted = float((grad * step).sum())
        assert (ends[0] - ends[1]) / 2 == pytest.approx(wanted, rel=0.05, abs=2e-3), name
