"""Checking drafts: how many of each request's are accepted, and which token follows them."""

from __future__ import annotations

from itertools import pairwise

import torch

from rorqual_engine.ref.choice import RowChoices, draw, kept_weights
from rorqual_engine.ref.noise import ACCEPT, uniforms

RESIDUAL_FLOOR = 1e-7
"""Where less is left after a refused draft, the two distributions are equal up to rounding."""


def verify_drafts(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    row_starts: torch.Tensor,
    choices: RowChoices,
    bitmask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(accepted int32 [B], next token int64 [B]) of B requests whose rows lie behind each other.

    logits: fp32 [R, vocab]; request b has the rows row_starts[b] .. row_starts[b + 1]: its last
        certain token, then its drafts; any number of them
    drafts: int64 [R], the draft that follows a row, which is the input of the next one; the value
        in a request's last row does not matter
    draft_probabilities: fp32 [R, vocab], the distribution each row's draft was drawn from; None:
        drafts were not drawn but chosen
    row_starts: int32 [B + 1]; choices: of all rows; bitmask: as choose_tokens takes it, by row

    Greedy rows accept a draft that is their token. Other rows accept draft x where
    noise * p_draft(x) < p(x), p being the row's distribution after all cuts; the token after the
    first refused draft is drawn from max(p - p_draft, 0), or from p where that is nothing. After
    the last accepted draft the token is drawn from its row's p. Without draft_probabilities a row
    accepts a draft that is the token it would draw, which is the same rule for certain drafts, so
    that the tokens are those of a run without drafts. A request without rows: (0, -1).
    """
    weights = kept_weights(logits, choices, bitmask)
    noise = uniforms(choices.seeds, choices.positions)
    drawn = draw(weights, noise) if len(logits) else drafts
    accept_noise = uniforms(choices.seeds, choices.positions, ACCEPT)
    accepted, tokens = [], []
    bounds = row_starts.tolist()
    for first, end in pairwise(bounds):
        row, token = first, -1
        while row < end:
            token = int(drawn[row])
            if row == end - 1:
                break
            draft = int(drafts[row])
            if draft_probabilities is None or not choices.inverse[row] > 0:
                if draft != token:
                    break
            else:
                wanted = weights[row] / weights[row].sum()
                given = draft_probabilities[row].double()
                if not accept_noise[row] * given[draft] < wanted[draft]:
                    token = _after_refusal(wanted, given, noise[row])
                    break
            row += 1
        accepted.append(row - first)
        tokens.append(token)
    device = logits.device
    return (
        torch.tensor(accepted, dtype=torch.int32, device=device),
        torch.tensor(tokens, dtype=torch.int64, device=device),
    )


def _after_refusal(wanted: torch.Tensor, given: torch.Tensor, noise: torch.Tensor) -> int:
    left = (wanted - given).clamp_min(0)
    source = left if float(left.sum()) > RESIDUAL_FLOOR else wanted
    return int(draw(source[None], noise[None]))
