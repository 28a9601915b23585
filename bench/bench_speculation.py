"""Decode with guesses against decode without, in turns in one run: one engine thread, no services.

Both give the same tokens, which is checked. Ratios are medians over rounds. Idle is the share of
decode's time in which no forward runs: sampling, bookkeeping and what the drafter takes.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rorqual_engine.device import configure_threads

NUM_THREADS = configure_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from rorqual_decode.block_chain import BlockChain  # noqa: E402
from rorqual_decode.engine_thread import DecodeEngine  # noqa: E402
from rorqual_decode.generation import (  # noqa: E402
    Emission,
    GenerationKey,
    GenerationSpec,
    SamplingSpec,
)
from rorqual_decode.page_hold import PageHold  # noqa: E402
from rorqual_decode.running import Running  # noqa: E402
from rorqual_decode.sampling import choose_tokens  # noqa: E402
from rorqual_decode.speculation import Speculation  # noqa: E402
from rorqual_decode.stopping import StopRule  # noqa: E402
from rorqual_decode.warm_up import warm_up  # noqa: E402
from rorqual_engine.batch import SequenceChunk  # noqa: E402
from rorqual_engine.kv import PagedKvCache  # noqa: E402
from rorqual_engine.models import CausalModel, load_model  # noqa: E402
from rorqual_engine.models.options import LoadOptions  # noqa: E402
from rorqual_engine.speculation import Drafter, open_drafter  # noqa: E402
from rorqual_engine.step_timing import Timing, time_verify  # noqa: E402
from rorqual_policy.draft_budget import StepProfile  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

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

_RUN_TIMEOUT_S = 600.0


class NoWriter:
    """Blocks go nowhere."""

    def offer(self, *_: Any) -> bool:
        return False


class TimedModel:
    """Adds up the time that forwards take."""

    def __init__(self, model: CausalModel) -> None:
        self._model, self.busy_s = model, 0.0

    def forward(self, chunks: Sequence[SequenceChunk], cache: PagedKvCache) -> torch.Tensor:
        began_s = time.perf_counter()
        logits = self._model.forward(chunks, cache)
        self.busy_s += time.perf_counter() - began_s
        return logits

    def save_window(self, cache: PagedKvCache, window: int, num_tokens: int) -> torch.Tensor:
        return self._model.save_window(cache, window, num_tokens)


@dataclass(frozen=True)
class Run:
    """One way through some prompts."""

    tokens_per_s: float
    """Of decode alone."""
    token_ids: list[list[int]]
    tokens_a_step: float
    """Mean of a sequence."""
    idle: float
    """Share of the time without a forward."""


class Session:
    """A model, its cache, and one way to run prompts to their ends."""

    def __init__(self, model: CausalModel, cache: PagedKvCache, temperature: float) -> None:
        self.model, self.cache, self._temperature = model, cache, temperature

    def run(
        self, prompts: Sequence[list[int]], num_new: int, drafter: Drafter, speculation: Speculation
    ) -> Run:
        """All prompts together, to their ends."""
        outputs: dict[GenerationKey, list[int]] = {}
        have_ended = threading.Event()
        num_rounds = 0

        def on_output(emissions: list[Emission]) -> None:
            nonlocal num_rounds
            num_rounds += len(emissions)
            for emission in emissions:
                outputs[emission.key] += emission.token_ids
            if all(len(ids) == num_new for ids in outputs.values()):
                have_ended.set()

        timed = TimedModel(self.model)
        with torch.inference_mode():
            sequences = [self._prefilled(n, ids, num_new, drafter) for n, ids in enumerate(prompts)]
        outputs.update((s.spec.key, [int(s.chunk.token_ids[0])]) for s in sequences)
        writer = cast(Any, NoWriter())
        engine = DecodeEngine(timed, self.cache, writer, on_output, speculation=speculation)
        for sequence in sequences:
            engine.add(sequence)
        began_s = time.perf_counter()
        engine.start()
        assert have_ended.wait(_RUN_TIMEOUT_S), "the engine has stopped, or is far too slow"
        took_s = time.perf_counter() - began_s
        engine.close()
        num_decoded = len(prompts) * (num_new - 1)
        return Run(
            num_decoded / took_s,
            list(outputs.values()),
            num_decoded / num_rounds,
            1 - timed.busy_s / took_s,
        )

    def _prefilled(self, number: int, ids: list[int], num_new: int, drafter: Drafter) -> Running:
        lease = self.cache.allocate(self.model.kv_layout.num_pages(len(ids) + num_new))
        hold = PageHold(lease)
        sampling = SamplingSpec(
            self._temperature, 1.0, 0, 0.0, number, num_new, frozenset(), True, None
        )
        spec = GenerationSpec(
            GenerationKey(str(number), 0), "", "", len(ids), 0, sampling, "", 0, 0.0, 0.0
        )
        sequence = Running(
            spec,
            lease.pages,
            hold,
            StopRule(frozenset(), num_new),
            BlockChain(bytes(16), ids[len(ids) // 128 * 128 :]),
            window=lease.window,
            memory=drafter.open(np.array(ids)),
        )
        chunk = SequenceChunk(ids, 0, lease.pages, True, lease.window, defers_late=True)
        choose_tokens(self.model.forward([chunk], self.cache), [sequence])
        return sequence


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
