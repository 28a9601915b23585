"""Which tokens are drawn on the event loop: only those that take one look."""

from __future__ import annotations

from dataclasses import replace

from rorqual_decode.generation import SamplingSpec
from rorqual_decode.sampling import is_cheap_draw

GREEDY = SamplingSpec(
    temperature=0.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    seed=0,
    max_new_tokens=4,
    stop_token_ids=(),
    ignore_eos=False,
    num_logprobs=None,
)


def test_the_largest_logit_alone_is_cheap() -> None:
    assert is_cheap_draw(GREEDY, has_grammar=False)


def test_noise_scores_and_masks_are_not() -> None:
    assert not is_cheap_draw(replace(GREEDY, temperature=0.7), has_grammar=False)
    assert not is_cheap_draw(replace(GREEDY, num_logprobs=0), has_grammar=False)
    assert not is_cheap_draw(GREEDY, has_grammar=True)
