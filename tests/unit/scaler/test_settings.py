"""Settings that contradict each other stop the start."""

import pytest
from pydantic import ValidationError
from rorqual_scaler.settings import SERVICES, ScalerSettings


def test_by_default_nothing_scales():
    settings = ScalerSettings()
    assert {settings.bounds(service) for service in SERVICES} == {(1, 1, 0)}


@pytest.mark.parametrize(
    "fields",
    [
        {"min_prefill": 3, "max_prefill": 2},
        {"min_decode": 3},
        {"max_vision": 0},
        {"min_vision": 0},
        {"min_recipe": 0, "max_recipe": 4},
        {"modules": {"router": "rorqual_router"}},
        {"down_utilisation": 0.9, "up_utilisation": 0.8},
    ],
)
def test_contradictions_are_refused(fields):
    with pytest.raises(ValidationError):
        ScalerSettings(**fields)


def test_a_service_may_be_left_out_and_prefill_and_decode_come_back_from_zero():
    settings = ScalerSettings(min_vision=0, max_vision=0, min_prefill=0, min_decode=0)
    assert settings.bounds("vision") == (0, 0, 0)
