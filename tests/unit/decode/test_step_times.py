"""Step times of a decode instance: as calibrated, then as its own steps say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rorqual_decode.step_times import StepTimes, calibrated_step_times
from rorqual_runtime.calibration import (
    Calibration,
    DecodeTimes,
    FitQuality,
    this_machine,
    write_calibration,
)

ERROR = FitQuality(median=0.01, p90=0.02, worst=0.1, num_samples=12)
MODEL = SimpleNamespace(fingerprint="f1", device=torch.device("cpu"), num_ranks=1)


def test_what_was_calibrated_is_read_and_nothing_is_known_without(tmp_path: Path) -> None:
    assert calibrated_step_times(tmp_path, MODEL) is None
    found = Calibration(
        model_fingerprint="f1",
        machine=this_machine("cpu", torch.get_num_threads()),
        measured_unix_s=1.0,
        decode=DecodeTimes(base_s=0.01, per_request_s=1e-3, per_kv_token_s=1e-6, error=ERROR),
    )
    write_calibration(tmp_path, found)
    times = calibrated_step_times(tmp_path, MODEL)
    assert times is not None and times.coefficients == (0.01, 1e-3, 1e-6)


def test_slower_steps_are_followed() -> None:
    times = StepTimes((0.01, 1e-3, 1e-6))
    for number in range(4000):
        num_rows, kv_tokens = number % 16 + 1, 500 * (number % 7)
        times.note(num_rows, kv_tokens, 2 * (0.01 + 1e-3 * num_rows + 1e-6 * kv_tokens))
    base_s, per_request_s, _ = times.coefficients
    assert base_s + 8 * per_request_s == pytest.approx(2 * 0.018, rel=0.05)
