"""What `rorqual replay` and `rorqual plan` read before they begin."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pydantic import ValidationError
from rorqual_policy.placement import PlacementParams
from rorqual_policy.step_cost import STUDY_COST, StepCost
from rorqual_runtime.calibration import Calibration
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.replay.plan import Prices

from rorqual_cli.problems import CliError


def replay_options(options: argparse.Namespace) -> ReplayOptions:
    """Arguments as options of the simulator.

    Raises: ValueError for values that make no sense; CliError for a calibration without times.
    """
    cost, decode = _step_times(options.calibration)
    return ReplayOptions(
        cost=cost,
        decode=decode,
        step_limit_s=options.step_limit,
        step_tokens=options.step_tokens,
        rank_cache_s=options.rank_cache,
        policy=options.policy,
        num_prefill=options.prefill,
        num_decode=options.decode,
        max_prefill=options.max_prefill,
        max_decode=options.max_decode,
        ranks_per_group=options.ranks,
        start_up_s=options.start_up,
        store_lifetime_s=options.store_lifetime,
        window_hold_s=options.window_hold,
        fetch_bytes_per_s=options.fetch_gib_per_s * 2**30,
        failures=tuple(options.fail),
        is_closed_loop=options.closed_loop,
        speed=options.speed,
        spread_s=options.spread,
        limit_s=options.limit,
        seed=options.seed,
    )


def _step_times(path: Path | None) -> tuple[StepCost, PlacementParams]:
    if path is None:
        return STUDY_COST, PlacementParams()
    try:
        found = Calibration.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise CliError(f"{path} is no calibration: {error.errors()[0]['msg']}") from None
    if found.prefill is None or found.decode is None:
        raise CliError(f"{path} lacks prefill or decode steps", "run `rorqual calibrate`")
    return StepCost(*found.prefill.coefficients), PlacementParams(*found.decode.coefficients)


def read_prices(options: argparse.Namespace) -> Prices | None:
    """`{"cards": {"h200": 2.5}, "million_tokens": {"input": 1, "cached_input": 0.1, "output": 4}}`

    None without a file. Raises: CliError naming what is missing.
    """
    path: Path | None = options.prices
    if path is None:
        return None
    try:
        table = json.loads(path.read_text())
        return Prices(
            card_hour=float(table["cards"][options.gpu]), **table.get("million_tokens", {})
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CliError(
            f"{path} has no usable price for {options.gpu!r}: {type(error).__name__} {error}",
            'write {"cards": {"h200": 2.5}, "million_tokens": {"input": 1, "output": 4}}',
        ) from None
