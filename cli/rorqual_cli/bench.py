"""`rorqual bench`: the curves of a model on this machine, measured step by step without a fleet."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rorqual_engine.device import configure_threads, device_name
from rorqual_engine.errors import EngineError
from rorqual_prefill.settings import PrefillSettings
from rorqual_runtime.calibration import this_machine
from rorqual_runtime.process import end_at_once

from rorqual_cli.curves import Curve, decode_points, draw, prefill_points
from rorqual_cli.model import ensure_model
from rorqual_cli.problems import CliError
from rorqual_cli.report import Reporter

if TYPE_CHECKING:
    from rorqual_engine.models.base import CausalModel

_SMALLEST_STEP_TOKENS = 16
_PAGE_TOKENS = 128


def run_bench(options: argparse.Namespace, report: Reporter) -> int:
    """Measure for about --seconds and write both files.

    Raises: CliError for a model that can't be loaded, or where no step fits.
    """
    home = options.home.resolve()
    model_dir = asyncio.run(ensure_model(options.model, home, report.say))
    settings = PrefillSettings(model_dir=model_dir, device=options.device)
    configure_threads(settings.num_threads or None)
    report.waiting("measuring steps")
    try:
        curve = _load_and_measure(settings, options, model_dir.name)
    except EngineError as error:
        raise CliError(str(error)) from None
    finally:
        report.waiting("")
    if not curve.points:
        raise CliError("no step fits the model's context and --largest")
    _write(curve, options.out, report)
    return 0


def _load_and_measure(settings: PrefillSettings, options: argparse.Namespace, name: str) -> Curve:
    import torch  # here: it reads the thread settings
    from rorqual_engine.expert_ranks import open_served_model

    with open_served_model(settings, on_lost=lambda lost: end_at_once(str(lost))) as model:
        num_threads = torch.get_num_threads()
        machine = this_machine(device_name(model.device), num_threads, model.num_ranks)
        return Curve(
            kind=options.kind,
            model=name,
            model_fingerprint=model.fingerprint,
            device=machine.device,
            processor=machine.processor,
            num_threads=num_threads,
            num_ranks=model.num_ranks,
            context_tokens=options.context,
            measured_unix_s=time.time(),
            points=measure(model, options.kind, options.largest, options.context, options.seconds),
        )


def measure(
    model: CausalModel, kind: str, largest: int, context_tokens: int, seconds: float
) -> tuple[Any, ...]:
    """The points of one curve, smallest step first. Blocks for about so long."""
    from rorqual_engine.huge_pages import move_to_huge_pages
    from rorqual_engine.step_timing import Timing, decode_steps, prefill_steps

    smallest = _SMALLEST_STEP_TOKENS if kind == "prefill" else 1
    sizes = [size for n in range(32) if smallest <= (size := 1 << n) < largest] + [largest]
    points = [(size, context_tokens) for size in sizes]
    if kind == "prefill":
        cache = model.new_cache(-(-(largest + context_tokens) // _PAGE_TOKENS), num_windows=1)
        move_to_huge_pages(model.device)
        steps = prefill_steps(model, cache, Timing(seconds), points)
        return prefill_points([(size, took_s) for (size, _), took_s in steps], model.num_ranks)
    num_pages = largest * (context_tokens // _PAGE_TOKENS + 1)
    cache = model.new_cache(num_pages, num_windows=largest)
    move_to_huge_pages(model.device)
    most_tokens = num_pages * _PAGE_TOKENS
    steps = decode_steps(model, cache, Timing(seconds), points, most_tokens)
    return decode_points([(size, took_s) for (size, _), took_s in steps], model.num_ranks)


def _write(curve: Curve, out: Path, report: Reporter) -> None:
    figures, picture = (out.with_name(out.name + suffix) for suffix in (".json", ".png"))
    figures.write_text(curve.to_json())
    report.say(f"wrote {figures}")
    try:
        draw(curve, picture)
    except ImportError:
        report.say("no picture without matplotlib: install rorqual-cli[plots]")
    else:
        report.say(f"wrote {picture}")
