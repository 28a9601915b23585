"""Temperatures of confidences: found again where they are known, never worse than none."""

from __future__ import annotations

import pytest
import torch

from training.calibration import calibration_error, fit_temperatures


def test_confidences_that_are_too_sure_are_tempered() -> None:
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn((20_000, 3), generator=generator) + 1
    drawn = torch.rand((20_000, 3), generator=generator) < torch.sigmoid(honest)
    found = fit_temperatures(honest * 3, drawn.cumprod(1).sum(1))
    assert found.temperatures == pytest.approx((3.0,) * 3, rel=0.3)
    assert max(found.errors_after) < 0.03 < min(found.errors_before)


def test_fitting_never_makes_the_first_position_worse() -> None:
    generator = torch.Generator().manual_seed(1)
    raw = torch.randn((500, 2), generator=generator)
    found = fit_temperatures(raw, torch.randint(0, 3, (500,), generator=generator))
    assert found.errors_after[0] <= found.errors_before[0] + 1e-12


def test_error_is_the_distance_of_chance_and_share() -> None:
    assert calibration_error(torch.tensor([0.5, 0.5]), torch.tensor([True, False])) == 0
    assert calibration_error(torch.tensor([0.9, 0.9]), torch.tensor([False, False])) == (
        pytest.approx(0.9)
    )
