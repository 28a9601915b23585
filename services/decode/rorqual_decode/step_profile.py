"""How long steps that check guesses take here: read from the calibration file, or measured once."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rorqual_engine.device import device_name
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.step_timing import Timing, time_verify
from rorqual_policy.draft_budget import StepProfile
from rorqual_runtime.calibration import (
    Calibration,
    VerifyTimes,
    read_calibration,
    this_machine,
    write_calibration,
)
from rorqual_runtime.logs import get_logger

_BUDGET_S = 1.0

log = get_logger(__name__)


def calibrated_profile(home: Path, model: CausalModel, cache: PagedKvCache) -> StepProfile:
    """Of this model on this machine. Blocks for about a second where no file says."""
    num_threads = torch.get_num_threads()
    machine = this_machine(device_name(model.device), num_threads, model.num_ranks)
    known = read_calibration(home, model.fingerprint, machine)
    if known is not None and known.verify is not None:
        return StepProfile(known.verify.num_rows, known.verify.step_s)
    profile = time_verify(model, cache, Timing(_BUDGET_S))
    found = Calibration(
        model_fingerprint=model.fingerprint,
        machine=machine,
        measured_unix_s=time.time(),
        verify=VerifyTimes(num_rows=profile.num_rows, step_s=profile.step_s),
    )
    try:
        write_calibration(home, found)
    except OSError as reason:  # measured again at the next start
        log.warning("the calibration could not be kept", extra={"reason": str(reason)})
    log.info("steps that check guesses calibrated", extra=profile._asdict())
    return profile
