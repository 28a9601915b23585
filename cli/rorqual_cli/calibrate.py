"""`rorqual calibrate`: step times of a model on this machine, measured, fitted and kept."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rorqual_engine.device import configure_threads, device_name
from rorqual_engine.errors import EngineError
from rorqual_policy.step_fit import FitError, StepSample, fit_decode_step, fit_prefill_cost
from rorqual_prefill.settings import PrefillSettings
from rorqual_runtime.calibration import (
    Calibration,
    DecodeTimes,
    FitQuality,
    Machine,
    PrefillTimes,
    VerifyTimes,
    this_machine,
    write_calibration,
)
from rorqual_runtime.process import end_at_once

from rorqual_cli.model import ensure_model
from rorqual_cli.problems import CliError
from rorqual_cli.report import Reporter

if TYPE_CHECKING:
    from rorqual_engine.models.base import CausalModel

_MOST_PAGES = 320
_MOST_SEQUENCES = 32
_PREFILL_SHARE, _DECODE_SHARE = 0.55, 0.35


def run_calibrate(options: argparse.Namespace, report: Reporter) -> int:
    """Measure for about --seconds and write the file.

    Raises: CliError for a model that can't be loaded, or times that can't be fitted.
    """
    home = options.home.resolve()
    model_dir = asyncio.run(ensure_model(options.model, home, report.say))
    settings = PrefillSettings(model_dir=model_dir, device=options.device)
    configure_threads(settings.num_threads or None)
    report.waiting("measuring steps")
    try:
        found = _load_and_measure(settings, options.seconds)
    except EngineError as error:
        raise CliError(str(error)) from None
    except ValueError as error:
        raise CliError(f"the measured times can't be fitted: {error}") from None
    finally:
        report.waiting("")
    _show(found, write_calibration(home, found), report)
    return 0


def _load_and_measure(settings: PrefillSettings, seconds: float) -> Calibration:
    import torch  # here: it reads the thread settings
    from rorqual_engine.expert_ranks import open_served_model

    with open_served_model(settings, on_lost=lambda lost: end_at_once(str(lost))) as model:
        num_threads = torch.get_num_threads()
        machine = this_machine(device_name(model.device), num_threads, model.num_ranks)
        return _measure(model, machine, seconds)


def _measure(model: CausalModel, machine: Machine, seconds: float) -> Calibration:
    from rorqual_engine.huge_pages import move_to_huge_pages
    from rorqual_engine.placement import ComputeThreads
    from rorqual_engine.step_timing import Timing, time_decode, time_prefill, time_verify

    cache = model.new_cache(_MOST_PAGES, num_windows=_MOST_SEQUENCES)
    move_to_huge_pages(model.device)
    threads = ComputeThreads()
    threads.spread(True)  # as an engine does that has one sequence
    prefill = time_prefill(model, cache, Timing(_PREFILL_SHARE * seconds))
    threads.spread(False)
    decode = time_decode(model, cache, Timing(_DECODE_SHARE * seconds))
    verify = time_verify(model, cache, Timing((1 - _PREFILL_SHARE - _DECODE_SHARE) * seconds))
    return Calibration(
        model_fingerprint=model.fingerprint,
        machine=machine,
        measured_unix_s=time.time(),
        prefill=prefill_times(prefill),
        decode=decode_times(decode),
        verify=VerifyTimes(**verify._asdict()),
    )


def prefill_times(samples: Sequence[StepSample]) -> PrefillTimes:
    """The fit as it is kept. Raises: ValueError for samples that don't tell it."""
    cost, error = fit_prefill_cost(samples)
    return PrefillTimes(**cost._asdict(), error=_quality(error))


def decode_times(samples: Sequence[StepSample]) -> DecodeTimes:
    """The fit as it is kept. Raises: ValueError for samples that don't tell it."""
    params, error = fit_decode_step(samples)
    return DecodeTimes(
        base_s=params.base_s,
        per_request_s=params.per_request_s,
        per_kv_token_s=params.per_kv_token_s,
        error=_quality(error),
    )


def _quality(error: FitError) -> FitQuality:
    return FitQuality(**error._asdict())


def _show(found: Calibration, path: Path, report: Reporter) -> None:
    assert found.prefill is not None and found.decode is not None
    machine = found.machine
    report.say(f"{machine.processor}, {machine.num_threads} threads, {machine.device}")
    for name, part, formula in (
        ("prefill step", found.prefill, "{:.3g} s + q ({:.3g} + {:.3g} c + {:.3g} q) s"),
        ("decode step", found.decode, "{:.3g} s + {:.3g} s a request + {:.3g} s a KV token"),
    ):
        error = part.error
        report.say(
            f"{name}: {formula.format(*part.coefficients)}; off by {error.median:.1%} in the "
            f"median, {error.p90:.1%} in 9 of 10, {error.worst:.1%} at most, "
            f"{error.num_samples} points"
        )
    if found.verify is not None:
        times = zip(found.verify.num_rows, found.verify.step_s, strict=True)
        report.say(
            "a step that checks guesses, ms by rows: "
            + ", ".join(f"{rows}: {took_s * 1000:.3g}" for rows, took_s in times)
        )
    report.say(f"wrote {path}")
