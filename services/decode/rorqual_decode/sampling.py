"""One token for every row of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.sampling import RowLogprobs, SamplingState, sample

from rorqual_decode.generation import Emission, SamplingSpec, TokenScores
from rorqual_decode.running import Running

_GREEDY = SamplingState()


def sampling_state(spec: SamplingSpec, position: int) -> SamplingState:
    """What the sampler needs to draw the token at this absolute position."""
    if is_cheap_draw(spec, has_grammar=False):
        return _GREEDY
    return SamplingState(
        temperature=max(0.0, spec.temperature),
        top_p=spec.top_p if 0 < spec.top_p < 1 else 1.0,
        top_k=spec.top_k,
        min_p=spec.min_p,
        seed=spec.seed,
        position=position,
        num_logprobs=spec.num_logprobs,
    )


def is_cheap_draw(spec: SamplingSpec, *, has_grammar: bool) -> bool:
    """Whether a token is one look for the largest logit: no noise, scores or mask (0.1 ms)."""
    return spec.temperature <= 0 and spec.num_logprobs is None and not has_grammar


def choose_tokens(logits: torch.Tensor, sequences: Sequence[Running]) -> list[Emission]:
    """Draw the next token of every sequence and append it there.

    logits: float32 [len(sequences), vocab]
    """
    states = [sampling_state(s.spec.sampling, s.next_position) for s in sequences]
    editors = [s.editor for s in sequences]
    sampled = sample(logits, states, _bitmask(logits, sequences), editors)
    drawn_ids = sampled.ids.tolist()
    emissions = []
    for row, sequence in enumerate(sequences):
        drawn, logprobs = drawn_ids[row], sampled.logprobs[row]
        token_id = sequence.admit(drawn)
        if logprobs is not None and token_id != drawn:
            logprobs = replace(logprobs, logprob=_logprob(logits[row], token_id))
        emissions.append(sequence.take(token_id, _scores(token_id, logprobs)))
    return emissions


def _logprob(row: torch.Tensor, token_id: int) -> float:
    return float(torch.log_softmax(row, dim=-1)[token_id])


def _bitmask(logits: torch.Tensor, sequences: Sequence[Running]) -> torch.Tensor | None:
    """Tokens the grammars allow next; None when no sequence has a grammar."""
    constrained = [(row, s.grammar) for row, s in enumerate(sequences) if s.grammar is not None]
    if not constrained:
        return None
    bitmask = new_bitmask(len(sequences), logits.shape[1])
    for row, grammar in constrained:
        grammar.fill_mask(bitmask, row)
    return bitmask


def _scores(token_id: int, logprobs: RowLogprobs | None) -> TokenScores | None:
    if logprobs is None:
        return None
    return TokenScores(
        token_id, logprobs.logprob, tuple(logprobs.top_ids), tuple(logprobs.top_logprobs)
    )
