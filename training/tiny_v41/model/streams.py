"""Residual streams that learn: how a sublayer reads them and writes back (mHC, lagged)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.autograd import Function

from training.tiny_v41.model import stream_kernels as kernels


@dataclass(frozen=True)
class Mix:
    """What one sublayer makes of its rows' streams; fp32."""

    pre: torch.Tensor
    """[T, n], how the sublayer after it reads the streams"""
    post: torch.Tensor
    """[T, n]"""
    comb: torch.Tensor
    """[T, n, n], stream j becomes comb[j, k] of stream k"""


def read(
    streams: torch.Tensor,
    pre: torch.Tensor,
    weights: dict[str, torch.Tensor],
    part: str,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, Mix]:
    """(normed input of the sublayer [T, D], its mix). streams: fp32 [T, n, D]; part: attn or ffn.

    pre: of the sublayer before.
    """
    n = streams.shape[1]
    x, logits = _read(streams, pre, weights[f"hc_{part}_fn"], weights[f"{part}_norm.weight"], eps)
    base, s = weights[f"hc_{part}_base"], weights[f"hc_{part}_scale"]
    pre_logits, post_logits, comb_logits = torch.split(logits, [n, n, n * n], dim=-1)
    pre_base, post_base, comb_base = torch.split(base, [n, n, n * n])
    begun = (comb_logits * s[2] + comb_base).view(-1, n, n).softmax(-1) + hc_eps
    comb = _balance(begun, iterations, hc_eps)
    mix = Mix(
        torch.sigmoid(pre_logits * s[0] + pre_base) + hc_eps,
        2 * torch.sigmoid(post_logits * s[1] + post_base),
        comb,
    )
    return x, mix


def write(streams: torch.Tensor, output: torch.Tensor, mix: Mix) -> torch.Tensor:
    """The streams behind a sublayer whose output is [T, D]."""
    result: torch.Tensor = _write(streams, output.float(), mix.post, mix.comb)
    return result


class _Read(Function):
    """x and the logits of the mix, [T, (2 + n) * n]."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        streams: torch.Tensor,
        pre: torch.Tensor,
        fn: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams, pre = streams.contiguous(), pre.contiguous()
        num_rows, _, hidden = streams.shape
        x, scales = streams.new_empty((num_rows, hidden)), streams.new_empty((num_rows, 2))
        kernels.collapse(*_arrays(streams, pre, norm), np.float32(eps), *_arrays(x, scales))
        raw = streams.flatten(1) @ fn.T
        ctx.save_for_backward(streams, pre, fn, norm, scales, raw)
        return x, raw * scales[:, :1]

    @staticmethod
    def backward(ctx: Any, grad_x: torch.Tensor, grad_logits: torch.Tensor) -> Any:  # type: ignore[override]
        streams, pre, fn, norm, scales, raw = ctx.saved_tensors
        grad_scale = (grad_logits * raw).sum(-1)
        grad_raw = grad_logits * scales[:, :1]
        grad_streams = (grad_raw @ fn).view_as(streams)
        grad_fn = grad_raw.T @ streams.flatten(1)
        grad_pre = torch.empty_like(pre)
        grad_norm = torch.zeros_like(norm)
        kernels.collapse_back(
            *_arrays(streams, pre, norm, scales, grad_x.contiguous(), grad_scale),
            *_arrays(grad_streams, grad_pre, grad_norm),
        )
        return grad_streams, grad_pre, grad_fn, grad_norm, None


class _Write(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        streams: torch.Tensor,
        output: torch.Tensor,
        post: torch.Tensor,
        comb: torch.Tensor,
    ) -> torch.Tensor:
        given = [part.contiguous() for part in (streams, output, post, comb)]
        result = torch.empty_like(given[0])
        kernels.expand(*_arrays(*given, result))
        ctx.save_for_backward(*given)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        given = ctx.saved_tensors
        grads = [torch.empty_like(part) for part in given]
        kernels.expand_back(*_arrays(*given, grad.contiguous(), *grads))
        return tuple(grads)


class _Balance(Function):
    """Nearly doubly stochastic matrices [T, n, n] of positive ones."""

    @staticmethod
    def forward(ctx: Any, begun: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:  # type: ignore[override]
        turned = begun.permute(1, 2, 0).contiguous()
        comb = torch.empty_like(turned)
        kernels.balance(*_arrays(turned), iterations, np.float32(eps), *_arrays(comb))
        ctx.save_for_backward(turned)
        ctx.iterations, ctx.eps = iterations, eps
        return comb.permute(2, 0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        (turned,) = ctx.saved_tensors
        grad_begun = torch.empty_like(turned)
        given = grad.permute(1, 2, 0).contiguous()
        kernels.balance_back(
            *_arrays(turned), ctx.iterations, np.float32(ctx.eps), *_arrays(given, grad_begun)
        )
        return grad_begun.permute(2, 0, 1), None, None


_read: Any = _Read.apply
_write: Any = _Write.apply
_balance: Any = _Balance.apply


def _arrays(*tensors: torch.Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]
