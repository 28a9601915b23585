"""Residual streams: how they are read as one row, written back and mixed."""

from __future__ import annotations

import torch

from rorqual_engine.ref.precision import widened


def mix_streams(
    streams: torch.Tensor,
    fn: torch.Tensor,
    base: torch.Tensor,
    scale: torch.Tensor,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre [T, n], post [T, n], comb [T, n, n]), fp32, of streams [T, n, D].

    fn: fp32 [(2 + n) * n, n * D]; base: fp32 [(2 + n) * n]; scale: fp32 [3]
    comb is balanced by `iterations` rounds, columns last. Rows do not depend on each other.
    """
    n = streams.shape[1]
    flat = streams.flatten(1).float()
    flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    logits = (widened(flat) @ widened(fn).T).float()
    pre, post, comb = torch.split(logits, [n, n, n * n], dim=-1)
    pre_base, post_base, comb_base = torch.split(base, [n, n, n * n])
    return (
        torch.sigmoid(pre * scale[0] + pre_base) + hc_eps,
        2 * torch.sigmoid(post * scale[1] + post_base),
        balance((comb * scale[2] + comb_base).view(-1, n, n), hc_eps, iterations),
    )


def balance(logits: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    """Rows by softmax, then columns; then rows and columns in turn. logits: fp32 [T, n, n]."""
    comb = logits.softmax(-1) + eps
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return comb


def collapse_streams(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """[T, D] in streams' dtype: sum of pre[t, i] * streams[t, i], summed in fp32.

    streams: [T, n, D]; pre: fp32 [T, n].
    """
    return (streams.float() * pre[:, :, None]).sum(1).to(streams.dtype)


def expand_streams(
    streams: torch.Tensor, output: torch.Tensor, post: torch.Tensor, comb: torch.Tensor
) -> torch.Tensor:
    """[T, n, D], new: stream k is post[t, k] * output[t] + sum over j of comb[t, j, k] * stream j.

    streams: [T, n, D]; output: [T, D]; post: fp32 [T, n]; comb: fp32 [T, n, n]. Computed in fp32,
    one rounding to streams' dtype.
    """
    mixed = torch.einsum("tjk,tjd->tkd", comb, streams.float())
    written = post[:, :, None] * output.float()[:, None, :]
    return (mixed + written).to(streams.dtype)
