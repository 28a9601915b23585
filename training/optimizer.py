"""Steps of the weights: orthogonal ones for matrices (Muon), AdamW for all else.

Source: Muon: Jordan et al. 2024, with the five-step iteration's published coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

Weights = dict[str, torch.Tensor]
_MOMENTUM = 0.95
_BETAS = (0.9, 0.95)
_EPS = 1e-10
_ITERATIONS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_BY_ADAM = ("embed", "head", ".gate.", "wgate", "hc_", "indexer", "patch_embed", "confidence")
"""Parts of names of matrices that are looked up, steer, or learn from another loss."""
_QUICK = ("embed.weight",)


def is_orthogonal(name: str, value: torch.Tensor) -> bool:
    """Whether a tensor's steps are made orthogonal."""
    return value.dim() >= 2 and not any(part in name for part in _BY_ADAM)


class Optimizer:
    """State of all steps so far; weights change in place."""

    def __init__(self, weights: Weights, state: Mapping[str, Any] | None = None) -> None:
        """state: of an earlier one; its tensors go on being used."""
        self._weights = weights
        self._state: dict[str, Any] = dict(state or _first_state(weights))

    @property
    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return self._state

    @torch.no_grad()
    def step(self, grads: Mapping[str, torch.Tensor], rate: float, matrix_rate: float) -> None:
        """rate: of AdamW; matrix_rate: of orthogonal steps. Tensors without a gradient stay."""
        self._state["num_steps"] += 1
        for name, grad in grads.items():
            value = self._weights[name]
            if name in self._state["squares"]:
                quick = 3.0 if name in _QUICK else 1.0
                self._adam(name, value, grad, quick * rate)
            else:
                self._orthogonal(name, value, grad, matrix_rate)

    def _adam(self, name: str, value: torch.Tensor, grad: torch.Tensor, rate: float) -> None:
        moment, square = self._state["moments"][name], self._state["squares"][name]
        count = self._state["num_steps"]
        moment.lerp_(grad, 1 - _BETAS[0])
        square.mul_(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
        first = 1 - _BETAS[0] ** count
        second = 1 - _BETAS[1] ** count
        root = (square / second).sqrt_().add_(_EPS)
        value.addcdiv_(moment, root, value=-rate / first)

    def _orthogonal(self, name: str, value: torch.Tensor, grad: torch.Tensor, rate: float) -> None:
        moment = self._state["moments"][name]
        moment.lerp_(grad, 1 - _MOMENTUM)
        wanted = grad.lerp(moment, _MOMENTUM)
        rows, columns = value.shape[-2:]
        scale = math.sqrt(max(1.0, rows / columns))
        value.mul_(1 - 0.01 * rate).add_(orthogonalized(wanted), alpha=-rate * scale)


def _sum(
    start: torch.Tensor, left: torch.Tensor, right: torch.Tensor, share: float, factor: float
) -> torch.Tensor:
    """share * start + factor * left @ right"""
    add = torch.baddbmm if start.dim() == 3 else torch.addmm
    return add(start, left, right, beta=share, alpha=factor)


def _first_state(weights: Weights) -> dict[str, Any]:
    by_adam = {n: torch.zeros_like(v) for n, v in weights.items() if not is_orthogonal(n, v)}
    moments = {name: torch.zeros_like(value) for name, value in weights.items()}
    return {"moments": moments, "squares": by_adam, "num_steps": 0}


def orthogonalized(grad: torch.Tensor) -> torch.Tensor:
    """The nearest matrices [..., m, n] with singular values of about 1, fp32."""
    a, b, c = _COEFFICIENTS
    is_tall = grad.shape[-2] > grad.shape[-1]
    x = grad.mT if is_tall else grad
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16)
    for _ in range(_ITERATIONS):
        product = x @ x.mT
        x = _sum(x, _sum(product, product, product, b, c), x, a, 1.0)
    found: torch.Tensor = (x.mT if is_tall else x).float()
    return found
