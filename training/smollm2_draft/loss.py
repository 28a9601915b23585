"""What a draft module is taught: the model's distribution, and how sure it may be of a guess."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from training.smollm2_draft.draft import Guesses

_ENTROPY_SHARE = 0.3
"""Of cross entropy; the rest is distance, which alone teaches little where both are far apart."""


def draft_loss(guesses: Guesses, wanted: torch.Tensor, is_there: torch.Tensor) -> torch.Tensor:
    """Sum over blocks, divided by their number: distance to the model's distribution and cross
    entropy to it, and calibration of confidence; later places count less.

    wanted: fp32 [N, g, V], the model's shares; is_there: bool [N, g], false behind the answer's
    end. Source: DSpark, section on training.
    """
    block = is_there.shape[1]
    weights = is_there * torch.exp(-torch.arange(block) / block)
    distance: torch.Tensor
    distance, accepted = _Distance.apply(guesses.logits, wanted)  # type: ignore[no-untyped-call]
    surprise = functional.binary_cross_entropy_with_logits(
        guesses.confidences, accepted, reduction="none"
    )
    return ((distance + surprise) * weights).sum() / max(1, len(wanted))


class _Distance(torch.autograd.Function):
    """(loss [N, g], 1 - half the distance [N, g]) of logits and shares, with few passes over them.

    d/dlogits of cross entropy is p - w; of sum |p - w| it is p (s - sum p s), s = sign(p - w).
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, wanted: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logs = logits.log_softmax(-1)
        shares = logs.exp()
        entropy = -torch.einsum("ngv,ngv->ng", wanted, logs)
        difference = shares - wanted
        distance = difference.abs().sum(-1)
        sign = difference.sign()
        mean = torch.einsum("ngv,ngv->ng", shares, sign)
        grad = sign.sub_(mean[..., None]).mul_(shares).mul_(1 - _ENTROPY_SHARE)
        ctx.save_for_backward(grad.add_(difference, alpha=_ENTROPY_SHARE))
        accepted = (1 - 0.5 * distance).clamp(0, 1)
        ctx.mark_non_differentiable(accepted)
        return _ENTROPY_SHARE * entropy + (1 - _ENTROPY_SHARE) * distance, accepted

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0][..., None], None
