"""Decode with guesses against decode without, in turns in one run: one engine thread, no services.

Both give the same tokens, which is checked. Ratios are medians over rounds. Idle is the share of
decode's time between two forwards: sampling, and what the drafter takes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from rorqual_engine.device import configure_threads

NUM_THREADS = configure_threads()

from rorqual_decode.speculation import Speculation  # noqa: E402
from rorqual_decode.warm_up import warm_up  # noqa: E402
from rorqual_engine.models import load_model  # noqa: E402
from rorqual_engine.models.options import LoadOptions  # noqa: E402
from rorqual_engine.speculation import Drafter, open_drafter  # noqa: E402
from rorqual_engine.step_timing import Timing, time_verify  # noqa: E402
from rorqual_policy.draft_budget import StepProfile  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from bench.decode_session import Run, Session  # noqa: E402
from bench.report import emit  # noqa: E402
from tests.support.model import default_model_dir  # noqa: E402

PREDICTABLE = (
    "<|im_start|>user\nRepeat this text word for word: The river rises in the northern hills, runs "
    "past four mills and an old stone bridge, and reaches the sea below the town of Farlow. Salmon "
    "come up in May. In winter the upper reaches freeze, and the mill keepers walk across the ice "
    "to trade flour for salt and lamp oil.<|im_end|>\n<|im_start|>assistant\n"
)
OPEN = (
    "<|im_start|>user\nTell me something about {topic} that few people know.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
TOPICS = ("whales", "bridges", "salt", "the moon", "bread", "glass", "Peru", "beetles")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--guesses", type=int, default=5)
    options = parser.parse_args()
    model_dir = options.model or default_model_dir()
    model = load_model(model_dir, options=LoadOptions(drafts=options.drafter == "dspark"))
    cache = model.new_cache(256, num_windows=64)
    warm_up(model, cache)
    drafter = open_drafter(options.drafter, model, cache, options.guesses)
    profile = time_verify(model, cache, Timing(1.5))
    for rows, step_s in zip(*profile, strict=True):
        emit(f"step_{rows}_rows", step_s * 1000, "ms")
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    session = Session(model, cache, options.temperature)
    kinds = {"predictable": [PREDICTABLE], "open": [OPEN.format(topic=topic) for topic in TOPICS]}
    kinds["mixed"] = [kinds["predictable"][0], *kinds["open"][:1]]
    all_equal = True
    for batch in options.batches:
        for kind, texts in kinds.items():
            encoded = [tokenizer.encode(text).ids for text in texts]
            prompts = [encoded[n % len(encoded)] for n in range(batch)]
            all_equal &= compare(
                f"{kind}_batch_{batch}", session, prompts, drafter, profile, options
            )
    return 0 if emit("outputs_equal", float(all_equal), "bool", goal=1.0) else 1


def compare(
    name: str,
    session: Session,
    prompts: list[list[int]],
    drafter: Drafter,
    profile: StepProfile,
    options: argparse.Namespace,
) -> bool:
    """Rounds of none, fixed and variable in turns; whether all gave the same tokens."""
    none = open_drafter("none", session.model, session.cache, 1)
    ways: dict[str, tuple[Drafter, Speculation]] = {
        "none": (none, Speculation(none)),
        "fixed": (drafter, Speculation(drafter, "fixed", profile)),
        "current": (drafter, Speculation(drafter, "current", profile)),
    }
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, how in ways.items():
            runs[way].append(session.run(prompts, options.new_tokens, *how))
    emit(f"{name}_none", _median(run.tokens_per_s for run in runs["none"]), "tokens/s")
    emit(f"{name}_idle", _median(run.idle for run in runs["none"]), "share")
    for way in ("fixed", "current"):
        pairs = zip(runs[way], runs["none"], strict=True)
        ratio = _median(ours.tokens_per_s / plain.tokens_per_s for ours, plain in pairs)
        length = round(runs[way][-1].tokens_a_step, 2)
        emit(f"{name}_{way}_over_none", ratio, "ratio", tokens_a_step=length)
    expected = runs["none"][0].token_ids
    return all(run.token_ids == expected for found in runs.values() for run in found)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    raise SystemExit(main())
