"""The step profile is measured once, kept, and read by the next start."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rorqual_decode import step_profile
from rorqual_decode.step_profile import calibrated_profile
from rorqual_engine.models import CausalModel
from rorqual_policy.draft_budget import StepProfile

PROFILE = StepProfile((1, 4, 8), (0.01, 0.011, 0.02))


class Model:
    fingerprint, device, num_ranks = "f00d", torch.device("cpu"), 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls = []

    def time_verify(*_: Any) -> StepProfile:
        calls.append("measured")
        return PROFILE

    monkeypatch.setattr(step_profile, "time_verify", time_verify)
    return calls


def profile_in(home: Path) -> StepProfile:
    return calibrated_profile(home, cast(CausalModel, Model()), cast(Any, None))


def test_a_second_start_reads_what_the_first_measured(tmp_path: Path, measured: list[str]) -> None:
    assert [profile_in(tmp_path), profile_in(tmp_path)] == [PROFILE, PROFILE]
    assert measured == ["measured"]


@pytest.mark.parametrize("before, after", [("4", "1"), ("0.011", "0")])
def test_a_file_without_sense_is_measured_again(
    tmp_path: Path, measured: list[str], before: str, after: str
) -> None:
    profile_in(tmp_path)
    (file,) = (tmp_path / "calibration").glob("*.json")
    text = file.read_text()
    assert f"{before},\n" in text
    file.write_text(text.replace(f"{before},\n", f"{after},\n"))
    assert profile_in(tmp_path) == PROFILE
    assert len(measured) == 2


def test_a_home_that_can_not_be_written_does_not_end_the_start(
    tmp_path: Path, measured: list[str]
) -> None:
    (tmp_path / "calibration").write_text("a file where a folder should be")
    assert profile_in(tmp_path) == PROFILE
