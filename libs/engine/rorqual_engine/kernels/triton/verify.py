"""Twin of ref/verify.py: a program a request, over rows whose tokens are drawn already."""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rorqual_engine.kernels.triton.choice import (
    NO_LIMIT,
    allowed_logits,
    block_of,
    cut_rows,
    draw_rows,
    kept_weights,
    uniform,
)
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.noise import ACCEPT
from rorqual_engine.ref.verify import RESIDUAL_FLOOR


@triton.jit
def _verify(
    logits, bitmask, drafts, given, drawn, row_starts, inverse_of, min_p_of, seeds, positions,
    peaks, cut_keys, cut_tokens, totals, accepted, tokens, vocab, row_stride, mask_stride,
    given_stride, FLOOR: tl.constexpr, ACCEPT_STREAM: tl.constexpr, HAS_GIVEN: tl.constexpr,
    HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    begin = tl.load(row_starts + request)
    end = tl.load(row_starts + request + 1)
    is_open = end > begin
    count = tl.full((), 0, tl.int32)
    is_refused = end < begin
    for step in range(end - begin - 1):
        row = begin + step
        if is_open:
            draft = tl.load(drafts + row)
            is_fine = draft == tl.load(drawn + row)
            inverse = tl.load(inverse_of + row)
            if HAS_GIVEN:  # noqa: SIM102 - one is known when compiled, one when run
                if inverse > 0:
                    token = draft.to(tl.int32)
                    value = allowed_logits(
                        logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK
                    )
                    weight = kept_weights(
                        value, token, tl.load(peaks + row), inverse, tl.load(cut_keys + row),
                        tl.load(cut_tokens + row), tl.load(min_p_of + row),
                    )  # fmt: skip
                    noise = uniform(tl.load(seeds + row), tl.load(positions + row), ACCEPT_STREAM)
                    drawn_with = tl.load(given + row.to(tl.int64) * given_stride + token)
                    wanted = weight / tl.load(totals + row)
                    is_fine = noise * drawn_with.to(tl.float64) < wanted
                    is_refused = is_fine == 0
            count += is_fine.to(tl.int32)
            is_open = is_fine
    chosen = tl.full((), -1, tl.int64)
    row = begin + count
    if end > begin:
        chosen = tl.load(drawn + row)
    if HAS_GIVEN:  # noqa: SIM102
        if is_refused:
            chosen = _after_refusal(
                logits, bitmask, given, row, inverse_of, min_p_of, seeds, positions, peaks,
                cut_keys, cut_tokens, totals, vocab, row_stride, mask_stride, given_stride, FLOOR,
                HAS_MASK, BLOCK,
            )  # fmt: skip
    tl.store(accepted + request, count)
    tl.store(tokens + request, chosen)


@triton.jit
def _left(
    logits, bitmask, given, row, token, peak, inverse, cut_key, cut_token, min_p, total, vocab,
    row_stride, mask_stride, given_stride, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """(the row's own probabilities, what of them is above the draft's), fp64."""
    value = allowed_logits(logits, bitmask, row, token, vocab, row_stride, mask_stride, HAS_MASK)
    wanted = kept_weights(value, token, peak, inverse, cut_key, cut_token, min_p) / total
    at = row.to(tl.int64) * given_stride + token
    drawn_with = tl.load(given + at, mask=token < vocab, other=0.0)
    return wanted, tl.maximum(wanted - drawn_with.to(tl.float64), 0.0)


@triton.jit
def _after_refusal(
    logits, bitmask, given, row, inverse_of, min_p_of, seeds, positions, peaks, cut_keys,
    cut_tokens, totals, vocab, row_stride, mask_stride, given_stride, FLOOR: tl.constexpr,
    HAS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    peak, inverse = tl.load(peaks + row), tl.load(inverse_of + row)
    cut_key, cut_token = tl.load(cut_keys + row), tl.load(cut_tokens + row)
    min_p, total = tl.load(min_p_of + row), tl.load(totals + row)
    mass = tl.full((), 0.0, tl.float64)
    whole = tl.full((), 0.0, tl.float64)
    for at in range(0, vocab, BLOCK):
        token = at + tl.arange(0, BLOCK)
        wanted, left = _left(
            logits, bitmask, given, row, token, peak, inverse, cut_key, cut_token, min_p, total,
            vocab, row_stride, mask_stride, given_stride, HAS_MASK,
        )  # fmt: skip
        mass += tl.sum(left, 0)
        whole += tl.sum(wanted, 0)
    uses_left = mass > FLOOR
    aim = uniform(tl.load(seeds + row), tl.load(positions + row), 0)
    aim = aim * tl.where(uses_left, mass, whole)
    passed = tl.full((), 0.0, tl.float64)
    first = tl.full((), NO_LIMIT, tl.int32)
    last = tl.full((), 0, tl.int32)
    for at in range(0, vocab, BLOCK):
        token = at + tl.arange(0, BLOCK)
        wanted, left = _left(
            logits, bitmask, given, row, token, peak, inverse, cut_key, cut_token, min_p, total,
            vocab, row_stride, mask_stride, given_stride, HAS_MASK,
        )  # fmt: skip
        weights = tl.where(uses_left, left, wanted)
        here = passed + tl.cumsum(weights, 0)
        is_past = (here > aim) & (weights > 0)
        first = tl.minimum(first, tl.min(tl.where(is_past, token, NO_LIMIT), 0))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, token, 0), 0))
        passed += tl.sum(weights, 0)
    return tl.minimum(first, last).to(tl.int64)


def verify_drafts(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probabilities: torch.Tensor | None,
    row_starts: torch.Tensor,
    choices: RowChoices,
    bitmask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_requests = len(row_starts) - 1
    accepted = torch.empty(num_requests, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(num_requests, dtype=torch.int64, device=logits.device)
    if not num_requests:
        return accepted, tokens
    cuts = cut_rows(logits, choices, bitmask)
    drawn = draw_rows(logits, choices, bitmask, cuts)
    words = cuts.tokens if bitmask is None else bitmask
    given = logits if draft_probabilities is None else draft_probabilities
    _verify[(num_requests,)](
        logits, words, drafts, given, drawn, row_starts, choices.inverse, choices.min_p,
        choices.seeds, choices.positions, cuts.peaks, cuts.keys, cuts.tokens, cuts.totals,
        accepted, tokens, logits.shape[1], logits.stride(0), words.stride(0), given.stride(0),
        FLOOR=RESIDUAL_FLOOR, ACCEPT_STREAM=ACCEPT, HAS_GIVEN=draft_probabilities is not None,
        HAS_MASK=bitmask is not None, BLOCK=block_of(logits.shape[1]),
    )  # fmt: skip
    return accepted, tokens
