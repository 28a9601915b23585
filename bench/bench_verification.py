"""How many guesses a step checks: as many as pay, against always five and none, at every
concurrency, in turns in one run.

Decode's own engine thread, drafter and schedule in one process, over held-out exercises of the
shipped V4.1 model: what it guesses well (tool calls, JSON) and badly (random copies, sorting,
arithmetic) mixed. Every way gives the same answers, which is checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rorqual_engine.device import configure_threads

NUM_THREADS = configure_threads()

import numpy as np  # noqa: E402
from rorqual_decode.speculation import Speculation  # noqa: E402
from rorqual_decode.warm_up import warm_up  # noqa: E402
from rorqual_engine.models import CausalModel, load_model  # noqa: E402
from rorqual_engine.models.options import LoadOptions  # noqa: E402
from rorqual_engine.speculation import Drafter, open_drafter  # noqa: E402
from rorqual_engine.step_timing import Timing, time_verify  # noqa: E402
from rorqual_recipe.encode import encode_request  # noqa: E402
from rorqual_recipe.model import load_served_model  # noqa: E402
from rorqual_recipe.protocols.base import ParseLimits  # noqa: E402
from rorqual_recipe.protocols.chat.adapter import ChatCompletions  # noqa: E402
from rorqual_recipe.settings import RecipeSettings  # noqa: E402

from bench.report import emit  # noqa: E402
from bench.saturated import Load, Saturated  # noqa: E402
from training.tiny_v41.tasks.draw import Draw  # noqa: E402
from training.tiny_v41.tasks.mixture import exercise  # noqa: E402

FAMILIES = ("tools", "copy", "json", "sort", "instructions", "arithmetic", "tools", "recall")
"""In turns: as many that are guessed well as badly."""
RECALL_TOKENS = 200
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
SATURATED_GOAL, NEVER_BELOW = 1.06, 1.0
WAYS = ("none", "fixed", "variable")
NUM_GUESSES = 5
_LEAST_REQUESTS = 32
_PAGES_A_PROMPT = 8


def prompts_of(model_dir: Path, count: int) -> list[list[int]]:
    """Encoded as the recipe service does it, families in turns."""
    settings = RecipeSettings(model_dir=model_dir, fast_tokenizer=False, prompt_encoding="auto")
    served = load_served_model(settings)
    limits = ParseLimits(max_choices=1, has_vision=True)
    prompts = []
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        found = exercise(family, Draw(f"verification {number}", held_out=True), RECALL_TOKENS)
        body = json.dumps({**found.body(served.model_id), "temperature": 0}).encode()
        encoded = encode_request(
            body, ChatCompletions(), served, default_max_tokens=1, limits=limits
        )
        prompts.append(np.frombuffer(encoded.prompt, np.dtype("<i4")).tolist())
    return prompts


class Comparison:
    """One model, and the ways to guess. Who guesses nothing has not loaded the draft module: its
    steps keep no keys for it."""

    def __init__(self, model_dir: Path, prompts: Sequence[list[int]], max_new: int) -> None:
        plain, load = _loaded(model_dir, prompts, max_new, drafts=False)
        drafting, with_drafts = _loaded(model_dir, prompts, max_new, drafts=True)
        self.profile = time_verify(drafting, with_drafts.cache, Timing(2.0))
        none = open_drafter("none", plain, load.cache, 1)
        drafter = open_drafter("auto", drafting, with_drafts.cache, NUM_GUESSES)
        self.drafter_name = drafter.name
        fixed, variable = (Speculation(drafter, how, self.profile) for how in ("fixed", "current"))
        self._ways: dict[str, tuple[Saturated, Drafter, Speculation]] = {
            "none": (load, none, Speculation(none)),
            "fixed": (with_drafts, drafter, fixed),
            "variable": (with_drafts, drafter, variable),
        }

    def at(self, concurrency: int, count: int, rounds: int) -> dict[str, list[Load]]:
        """Each way so often, in turns; who goes first changes from round to round."""
        found: dict[str, list[Load]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for place in range(len(WAYS)):
                way = WAYS[(place + number) % len(WAYS)]
                load, drafter, speculation = self._ways[way]
                found[way].append(load.run(concurrency, count, drafter, speculation))
        return found


def _loaded(
    model_dir: Path, prompts: Sequence[list[int]], max_new: int, *, drafts: bool
) -> tuple[CausalModel, Saturated]:
    model, num = load_model(model_dir, options=LoadOptions(drafts=drafts)), len(prompts)
    cache = model.new_cache(_PAGES_A_PROMPT * num + 64, num_windows=num + 32)
    warm_up(model, cache)
    return model, Saturated(model, cache, prompts, max_new_tokens=max_new, temperature=0.0)


def report(concurrency: int, found: dict[str, list[Load]]) -> dict[str, Any]:
    """Its lines, and what the curve keeps of it. Ratios are medians over rounds."""
    rates = {way: [load.tokens_per_s for load in loads] for way, loads in found.items()}
    point: dict[str, Any] = {"concurrency": concurrency}
    for way, loads in found.items():
        point[way] = round(statistics.median(rates[way]), 1)
        length = statistics.median(load.tokens_a_step for load in loads)
        guesses = statistics.median(load.guesses_a_step for load in loads)
        point[f"{way}_tokens_a_step"] = round(length, 2)
        point[f"{way}_guesses_a_step"] = round(guesses, 2)
        emit(
            f"verify_{concurrency}_{way}", point[way], "tokens/s",
            tokens_a_step=point[f"{way}_tokens_a_step"],
            guesses_a_step=point[f"{way}_guesses_a_step"],
        )  # fmt: skip
    for other in ("fixed", "none"):
        pairs = zip(rates["variable"], rates[other], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        point[f"variable_over_{other}"] = round(ratio, 3)
    return point


def judge(points: Sequence[dict[str, Any]]) -> bool:
    """The bars."""
    met = True
    for point in points:
        size = point["concurrency"]
        is_saturated = size == max(CONCURRENCIES)
        goal = SATURATED_GOAL if is_saturated else NEVER_BELOW
        met &= emit(f"variable_over_fixed_{size}", point["variable_over_fixed"], "ratio", goal=goal)
        over_none = point["variable_over_none"]
        met &= emit(f"variable_over_none_{size}", over_none, "ratio", goal=NEVER_BELOW)
    return met


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Output tokens/s of every way by concurrency, and variable over fixed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    rates, ratios = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    sizes = [point["concurrency"] for point in points]
    names = {"none": "no guesses", "fixed": f"always {NUM_GUESSES}", "variable": "as many as pay"}
    for way, name in names.items():
        rates.plot(sizes, [point[way] for point in points], "o-", label=name)
    rates.set_ylabel("output tokens/s")
    rates.legend()
    for other, name in (("fixed", f"over always {NUM_GUESSES}"), ("none", "over no guesses")):
        ratios.plot(sizes, [point[f"variable_over_{other}"] for point in points], "o-", label=name)
    ratios.axhline(1.0, color="grey", linewidth=0.8)
    ratios.set_ylabel("as many as pay, ratio")
    ratios.set_xscale("log", base=2)
    ratios.set_xticks(sizes, [str(size) for size in sizes])
    ratios.set_xlabel("requests at a time")
    ratios.legend()
    for axes in (rates, ratios):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_verification")
    parser.add_argument("--model", type=Path, default=Path("models/tiny-v41"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=160)
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[*CONCURRENCIES])
    parser.add_argument("--turns", type=int, default=3, help="requests a place, at least")
    parser.add_argument("--write", type=Path, help="a path, to become .json and .png")
    options = parser.parse_args()
    if options.turns < 2:
        parser.error("--turns: at least 2, so that all places are taken for more than a step")
    counts = {n: max(_LEAST_REQUESTS, options.turns * n) for n in options.concurrencies}
    prompts = prompts_of(options.model, max(counts.values()))
    comparison = Comparison(options.model, prompts, options.max_new_tokens)
    for rows, step_s in zip(*comparison.profile, strict=True):
        emit(f"step_{rows}_rows", step_s * 1000, "ms")
    points, are_equal = [], True
    for size, count in counts.items():
        found = comparison.at(size, count, options.rounds)
        answers = [load.answers for loads in found.values() for load in loads]
        are_equal &= all(given == answers[0] for given in answers)
        points.append(report(size, found))
    met = judge(points)
    met &= emit("answers_equal", float(are_equal), "bool", goal=1.0)
    if options.write:
        text = {"model": options.model.name, "drafter": comparison.drafter_name, "points": points}
        options.write.with_suffix(".json").write_text(json.dumps(text, indent=1) + "\n")
        draw(points, options.write.with_suffix(".png"))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
