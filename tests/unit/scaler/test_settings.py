"""Settings that contradict each other stop the start."""

import pytest
from pydantic import ValidationError
from rorqual_scaler.settings import ScalerSettings


def test_by_default_nothing_scales():
    settings = ScalerSettings()
    assert (settings.min_prefill, settings.max_prefill) == (1, 1)
    assert (settings.min_decode, settings.max_decode) == (1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"min_prefill": 3, "max_prefill": 2},
        {"min_decode": 3},
        {"down_utilisation": 0.9, "up_utilisation": 0.8},
    ],
)
def test_contradictions_are_refused(fields):
    with pytest.raises(ValidationError):
        ScalerSettings(**fields)
