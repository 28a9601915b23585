"""`make bench-sim`: what the simulator predicts of a real fleet, beside what its clients measure.

Step times are calibrated first. A fleet of one prefill and one decode instance then serves three
loads: requests one by one (the time of messages), a rehearsal (how prefill and decode slow each
other on one machine), and another trace, which nothing was fitted to: that one is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from rorqual_policy.placement import PlacementParams
from rorqual_policy.prefill_policy import STEP_LIMIT_S
from rorqual_policy.step_cost import StepCost
from rorqual_runtime.calibration import Calibration
from rorqual_sim.replay.options import ReplayOptions
from rorqual_sim.traces import read_trace

from bench.fleet_model import (
    Served,
    as_trace,
    fit_messages,
    fit_sharing,
    measured,
    predicted,
)
from bench.http_load import Endpoint, chat_body, stream_once
from bench.prompts import distinct_prompts
from bench.report import at_most, emit
from tests.support.fleet import running_fleet
from tests.support.model import default_model_dir

MODEL = "smollm2-135m-instruct"
STEP_TOKENS = 512
"""Of a prefill instance by default."""
MEAN_GOAL, P99_GOAL = 0.15, 0.30
_TEMPLATE_TOKENS = 40
_LONGEST_PROMPT, _LONGEST_OUTPUT = 1500, 96


@dataclass(frozen=True)
class Asked:
    """One request of a load."""

    at_s: float
    num_words: int
    num_output: int


def main() -> int:
    """Returns: 0 when every goal is met."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="rorqual-sim-") as folder:
        home = Path(folder)
        wanted = _calibrated(home, options.calibrate)
        with running_fleet(home) as fleet:
            parts = urlsplit(fleet.base_url)
            assert parts.hostname and parts.port
            clients = Clients(Endpoint(parts.hostname, parts.port))
            wanted = _fit(clients, wanted, options, home)
            served = clients.send(_load(options, options.requests, seed=2), seed=3)
        return _compare(served, wanted, home)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="lengths from this trace; default: drawn")
    parser.add_argument("--requests", type=int, default=150, help="of the compared trace")
    parser.add_argument("--rehearsal", type=int, default=60, help="requests of the rehearsal")
    parser.add_argument("--alone", type=int, default=24, help="requests sent one by one")
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--calibrate", type=float, default=25.0, help="seconds of calibration")
    return parser.parse_args()


def _calibrated(home: Path, seconds: float) -> ReplayOptions:
    command = ["calibrate", "--home", str(home), "--model", str(default_model_dir())]
    subprocess.run(
        [sys.executable, "-m", "rorqual_cli", *command, "--seconds", str(seconds)], check=True
    )
    (path,) = (home / "calibration").glob("*.json")
    found = Calibration.model_validate_json(path.read_bytes())
    assert found.prefill is not None and found.decode is not None
    for name, part in (("prefill", found.prefill), ("decode", found.decode)):
        emit(f"calibration_{name}_median_error", part.error.median, "share", p90=part.error.p90)
    return ReplayOptions(
        num_prefill=1,
        num_decode=1,
        ranks_per_group=1,
        cost=StepCost(*found.prefill.coefficients),
        decode=PlacementParams(*found.decode.coefficients),
        max_running=64,
        decode_kv_tokens=1024 * 128,
        step_limit_s=STEP_LIMIT_S,
        step_tokens=STEP_TOKENS,
    )


class Clients:
    """Sends loads to one gateway; prompts are never sent twice."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def send(self, load: list[Asked], *, seed: int, one_by_one: bool = False) -> list[Served]:
        """Each request at its time, or after the answer to the one before."""
        return asyncio.run(self._send(load, seed, one_by_one))

    async def _send(self, load: list[Asked], seed: int, one_by_one: bool) -> list[Served]:
        bodies = [
            chat_body(
                MODEL,
                distinct_prompts(1, num_words=asked.num_words, seed=1000 * seed + number)[0],
                max_tokens=asked.num_output,
            )
            for number, asked in enumerate(load)
        ]
        began_s = time.perf_counter()

        async def one(asked: Asked, body: dict[str, object]) -> Served:
            await asyncio.sleep(max(0.0, asked.at_s - (time.perf_counter() - began_s)))
            timing = await stream_once(self._endpoint, body)
            return Served(timing.sent_s - began_s, timing)

        pairs = zip(load, bodies, strict=True)
        if one_by_one:
            return [await one(Asked(0.0, a.num_words, a.num_output), b) for a, b in pairs]
        return list(await asyncio.gather(*(one(a, b) for a, b in pairs)))


def _load(options: argparse.Namespace, num: int, seed: int) -> list[Asked]:
    """Poisson arrivals. Lengths drawn from the trace, scaled so that the longest fit the model."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / options.rate, num))
    if options.trace:
        trace = read_trace(options.trace)
        drawn = rng.integers(0, len(trace), num)
        inputs, outputs = trace.input_tokens[drawn] / 24.0, trace.output_tokens[drawn] / 8.0
    else:
        inputs, outputs = rng.lognormal(5.6, 0.8, num), rng.lognormal(3.5, 0.6, num)
    words = np.clip(inputs - _TEMPLATE_TOKENS, 8, _LONGEST_PROMPT).astype(int).tolist()
    tokens = np.clip(outputs, 4, _LONGEST_OUTPUT).astype(int).tolist()
    return [Asked(*asked) for asked in zip(at_s.tolist(), words, tokens, strict=True)]


def _fit(
    clients: Clients, wanted: ReplayOptions, options: argparse.Namespace, home: Path
) -> ReplayOptions:
    clients.send(_load(options, 4, seed=9), seed=9, one_by_one=True)  # warms up
    alone = clients.send(_load(options, options.alone, seed=0), seed=1, one_by_one=True)
    bare_s, bare_token_s = wanted.decode.base_s, wanted.cost.a1_s
    wanted = fit_messages(alone, as_trace(alone, home / "alone.jsonl"), wanted)
    emit("services_add_before_prefill", wanted.host.before_prefill_s * 1e3, "ms")
    emit("prefill_steps_over_calibrated", wanted.cost.a1_s / bare_token_s, "x")
    emit("services_add_at_handover", wanted.host.handover_s * 1e3, "ms")
    emit("services_add_a_decode_step", (wanted.decode.base_s - bare_s) * 1e3, "ms")
    rehearsal = clients.send(_load(options, options.rehearsal, seed=1), seed=2)
    wanted = fit_sharing(rehearsal, as_trace(rehearsal, home / "rehearsal.jsonl"), wanted)
    emit("prefill_slowdown_beside_decode", wanted.host.prefill_slowdown, "x")
    emit("decode_slowdown_beside_prefill", wanted.host.decode_slowdown, "x")
    return wanted


def _compare(served: list[Served], wanted: ReplayOptions, home: Path) -> int:
    seen = measured(served).figures()
    said = predicted(as_trace(served, home / "compared.jsonl"), wanted).figures()
    met = []
    for name, value in seen.items():
        goal = MEAN_GOAL if name.endswith("mean") else P99_GOAL
        off = abs(said[name] / value - 1)
        shown = {"measured_ms": round(value * 1e3, 2), "predicted_ms": round(said[name] * 1e3, 2)}
        met.append(emit(f"sim_{name}_off", off, "share", goal=goal, passes=at_most, **shown))
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
