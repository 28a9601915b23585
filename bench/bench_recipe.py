"""Body to token ids against `deepseek-recipe` in one run: same bodies, same ids, two CPUs.

Each case gives two figures. `whole`: read the JSON body, check it, render the prompt, encode it.
`render`: render and encode what was read before; the goals are for this. Every body is new, except
that turn n of a session repeats its turns before, as agents do. There the body is still read as a
whole, which no cache saves, so that `whole` has no goal.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import deepseek_recipe
from rorqual_cli.profile import import_profile
from rorqual_recipe.conversation import Conversation
from rorqual_recipe.encode import encode_request
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.segments import segments_to_bytes

from bench.recipe_bodies import MODEL_ID, Bodies, many_messages, one_message, session
from bench.recipe_corpus import Corpus, train_tokenizer
from bench.report import emit

NUM_CPUS = 2
HOME = Path(".rorqual/bench/recipe")


@dataclass(frozen=True)
class Case:
    """Bodies to warm up with and then a body to measure, new ones in every round."""

    name: str
    goal: float
    num_rounds: int
    bodies: Bodies
    has_whole_goal: bool = True


def make_model_dir(tokenizer_path: Path | None) -> Path:
    """A directory with a tokenizer and the imported profile; trained once, then kept."""
    directory = HOME / ("given" if tokenizer_path else "trained")
    directory.mkdir(parents=True, exist_ok=True)
    profile = json.loads(import_profile("v4.1", directory).read_text())
    path = directory / "tokenizer.json"
    if tokenizer_path:
        path.write_bytes(tokenizer_path.read_bytes())
    elif not path.exists():
        print("training a tokenizer, once", file=sys.stderr)
        content = json.dumps(train_tokenizer(sorted(profile["tokens"].values())))
        path.with_suffix(".tmp").write_text(content)
        path.with_suffix(".tmp").replace(path)
    (directory / "rorqual.json").write_text(json.dumps({"id": MODEL_ID}))
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 1 << 26}))
    return directory


class Ours:
    """This service's way from a body to ids, which end as int32 bytes behind a view."""

    def __init__(self, directory: Path) -> None:
        settings = RecipeSettings(model_dir=directory, prompt_encoding="auto")
        self.model: ServedModel = load_served_model(settings)
        self._limits = ParseLimits(max_choices=1, has_vision=False)
        self._adapter = PROTOCOLS["chat_completions"]

    def whole(self, body: bytes) -> Sequence[int]:
        encoded = encode_request(
            body, self._adapter, self.model, default_max_tokens=2048, limits=self._limits
        )
        return memoryview(encoded.prompt).cast("i")

    def read(self, body: bytes) -> Conversation:
        return self._adapter.parse(body, self._limits).conversation

    def render(self, conversation: Conversation) -> Sequence[int]:
        segments = self.model.encoding.render(conversation).segments
        return memoryview(segments_to_bytes(segments, self.model.encoder)).cast("i")

    def num_cached_chars(self) -> int:
        """Characters that the cache has answered for since the start."""
        return self.model.token_cache.counts.hit_chars


class Theirs:
    """The oracle's way, to a list of ids, which is what it returns."""

    def __init__(self, directory: Path) -> None:
        tokenizer = deepseek_recipe.Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._encoding = deepseek_recipe.DeepseekV41Encoding().with_tokenizer(tokenizer)
        self._options = deepseek_recipe.ConversionOptions()

    def whole(self, body: bytes) -> Sequence[int]:
        return self.render(self.read(body))

    def read(self, body: bytes) -> object:
        return deepseek_recipe.ChatCompletionRequest(body).convert(self._options).conversation

    def render(self, conversation: object) -> Sequence[int]:
        return self._encoding.encode(conversation)


CASES = (
    Case("1mb_message", 8.0, 11, one_message(1_000_000)),
    Case("10mb_message", 8.0, 3, one_message(10_000_000)),
    Case("200_messages", 8.0, 11, many_messages(200, 1_000_000)),
    Case("session_turn_20", 100.0, 15, session(1_050_000), has_whole_goal=False),
)


def measure(case: Case, way: str, ours: Ours, theirs: Theirs, corpus: Corpus) -> bool:
    """Both sides in turn, on the same bodies; prints the ratio of the medians."""
    times_s: dict[object, list[float]] = {ours: [], theirs: []}
    num_cached = num_bytes = num_tokens = 0
    for _ in range(case.num_rounds):
        before, body = case.bodies(corpus)
        for earlier in before:  # the oracle keeps nothing between requests
            ours.whole(earlier)
        cached_before = ours.num_cached_chars()
        ids = [_timed_into(times_s[side], side, way, body) for side in (ours, theirs)]
        assert list(ids[0]) == list(ids[1]), "the two sides differ"
        num_cached += ours.num_cached_chars() - cached_before
        num_bytes, num_tokens = num_bytes + len(body), num_tokens + len(ids[0])
    our_s, their_s = statistics.median(times_s[ours]), statistics.median(times_s[theirs])
    best = min(times_s[theirs]) / min(times_s[ours])
    return emit(
        f"recipe_{way}_{case.name}_vs_oracle",
        their_s / our_s,
        "x",
        goal=case.goal if way == "render" or case.has_whole_goal else None,
        ours_ms=round(our_s * 1000, 3),
        oracle_ms=round(their_s * 1000, 3),
        ratio_of_best=round(best, 2),
        body_bytes=num_bytes // case.num_rounds,
        tokens=num_tokens // case.num_rounds,
        cached_share=round(num_cached / num_bytes, 3),
        rounds=case.num_rounds,
    )


def _timed_into(times_s: list[float], side: Ours | Theirs, way: str, body: bytes) -> Sequence[int]:
    if way == "whole":
        ids, seconds = timed(lambda: side.whole(body))
    else:
        conversation = side.read(body)
        ids, seconds = timed(lambda: side.render(conversation))  # type: ignore[arg-type]
    times_s.append(seconds)
    return ids


def timed(run: Callable[[], Sequence[int]]) -> tuple[Sequence[int], float]:
    began_s = time.perf_counter()
    value = run()
    return value, time.perf_counter() - began_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use instead")
    parser.add_argument("--only", default="", help="figures whose names contain this")
    options = parser.parse_args()
    if options.tokenizer and not options.tokenizer.exists():
        print(f"skipped: no {options.tokenizer}", file=sys.stderr)
        return 0
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_CPUS])
    directory = make_model_dir(options.tokenizer)
    ours, theirs, corpus = Ours(directory), Theirs(directory), Corpus(1)
    gc.freeze()  # as the service does once its model is loaded
    warm_up = one_message(100_000)
    for side in (ours, theirs):
        side.whole(warm_up(corpus)[1])
    chosen = [(case, way) for case in CASES for way in ("whole", "render")]
    met = [
        measure(case, way, ours, theirs, corpus)
        for case, way in chosen
        if options.only in f"{way}_{case.name}"
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
