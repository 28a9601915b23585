"""What prefill steps cost here: read from the calibration file, or measured once and written."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rorqual_engine.device import device_name
from rorqual_engine.kv import PagedKvCache
from rorqual_engine.models.base import CausalModel
from rorqual_engine.step_timing import FEW_PREFILL_POINTS, Timing, time_prefill
from rorqual_policy.step_cost import StepCost
from rorqual_policy.step_fit import fit_prefill_cost
from rorqual_runtime.calibration import (
    Calibration,
    FitQuality,
    Machine,
    PrefillTimes,
    read_calibration,
    this_machine,
    write_calibration,
)
from rorqual_runtime.logs import get_logger

log = get_logger(__name__)


def calibrated_cost(
    home: Path, model: CausalModel, cache: PagedKvCache, budget_s: float
) -> StepCost | None:
    """Cost of a step of this model on this machine. Blocks for about budget_s where no file says,
    for up to three times as long on a busy machine. What was too busy, or had too few free
    pages, for all points that fit the model's context is measured anew at the next start.

    None when nothing is known: budget_s is 0, or what was measured tells nothing.
    """
    num_threads = torch.get_num_threads()
    machine = this_machine(device_name(model.device), num_threads, model.num_ranks)
    known = read_calibration(home, model.fingerprint, machine)
    if known is not None and known.prefill is not None:
        return StepCost(*known.prefill.coefficients)
    if budget_s <= 0:
        return None
    return _measure(home, model, cache, machine, budget_s)


def _measure(
    home: Path, model: CausalModel, cache: PagedKvCache, machine: Machine, budget_s: float
) -> StepCost | None:
    samples = time_prefill(model, cache, Timing(budget_s), FEW_PREFILL_POINTS)
    try:
        cost, error = fit_prefill_cost(samples)
    except ValueError as reason:
        log.warning("prefill steps could not be calibrated", extra={"reason": str(reason)})
        return None
    log.info("prefill calibrated", extra={"cost": cost._asdict(), "worst_error": error.worst})
    possible = [point for point in FEW_PREFILL_POINTS if sum(point) <= model.max_context_tokens]
    if len(samples) < len(possible):  # a busy start, or few free pages
        return cost
    found = Calibration(
        model_fingerprint=model.fingerprint,
        machine=machine,
        measured_unix_s=time.time(),
        prefill=PrefillTimes(**cost._asdict(), error=FitQuality(**error._asdict())),
    )
    try:
        write_calibration(home, found)
    except OSError as reason:  # measured again at the next start
        log.warning("the calibration could not be kept", extra={"reason": str(reason)})
    return cost
