"""Which tokens are drawn on the event loop: only those that take one look."""

from __future__ import annotations

from rorqual_decode.sampling import is_cheap_draw

from tests.unit.decode.specs import sampling_spec


def test_the_largest_logit_alone_is_cheap() -> None:
    assert is_cheap_draw(sampling_spec(temperature=0.0), has_grammar=False)


def test_noise_scores_and_masks_are_not() -> None:
    assert not is_cheap_draw(sampling_spec(temperature=0.7), has_grammar=False)
    assert not is_cheap_draw(sampling_spec(num_logprobs=0), has_grammar=False)
    assert not is_cheap_draw(sampling_spec(), has_grammar=True)
