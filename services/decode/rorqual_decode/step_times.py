"""What decode steps take here: read from the calibration file, refined by every few steps."""

from __future__ import annotations

from pathlib import Path

import torch
from rorqual_engine.device import device_name
from rorqual_engine.models.base import CausalModel
from rorqual_policy.step_fit import Refinement, StepSample, decode_features, refine
from rorqual_runtime.calibration import read_calibration, this_machine

_NOTE_EVERY = 8
"""Steps: noting one takes 30 us of the engine thread."""


class StepTimes:
    """Coefficients of a step, kept up by who steps; one thread notes, any may read."""

    def __init__(self, calibrated: tuple[float, float, float]) -> None:
        """calibrated: seconds a step, a request and a KV token."""
        self._refined = Refinement.of(calibrated)
        self._num_steps = 0

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Seconds a step, a request and a KV token, by now."""
        return self._refined.coefficients

    def note(self, num_rows: int, kv_tokens: int, took_s: float) -> None:
        """A step over these rows, one a request where nothing is guessed, has taken so long."""
        self._num_steps += 1
        if self._num_steps % _NOTE_EVERY == 0:
            sample = StepSample(decode_features(num_rows, kv_tokens), took_s)
            self._refined = refine(self._refined, sample)


def calibrated_step_times(home: Path, model: CausalModel) -> StepTimes | None:
    """As `rorqual calibrate` measured them; None where it did not."""
    num_threads = torch.get_num_threads()
    machine = this_machine(device_name(model.device), num_threads, model.num_ranks)
    known = read_calibration(home, model.fingerprint, machine)
    if known is None or known.decode is None:
        return None
    return StepTimes(known.decode.coefficients)
