"""Tokens to SSE bytes against `deepseek-recipe` in one run: same tokens, same text, one CPU.

Ours: AnswerReader and the stream writer of Chat Completions. The oracle: its stream processor, with
every chunk as JSON put into an SSE frame. `stream` is ours with what the service adds: order of
deltas, usage, messages of the bus; the oracle has nothing of the kind.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import deepseek_recipe
from rorqual_recipe.choices import Choice, Delta
from rorqual_recipe.conversation import ParsedRequest
from rorqual_recipe.encodings.base import AnswerStage
from rorqual_recipe.event_log import EventLog
from rorqual_recipe.model import ServedModel, load_served_model
from rorqual_recipe.output.answer import AnswerReader
from rorqual_recipe.output.plan import AnswerPlan
from rorqual_recipe.output.sequence import DeltaOrder
from rorqual_recipe.protocols import PROTOCOLS
from rorqual_recipe.protocols.base import AnswerFacts, EventWriter, ParseLimits, TokenUsage
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.streams import RequestStream

from bench.bench_recipe import make_model_dir
from bench.recipe_corpus import Corpus
from bench.report import emit

NUM_ROUNDS = 9
NUM_TOKENS = 20_000
_BODY = {
    "model": "DeepSeek-V4.1-Flash",
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
}


@dataclass(frozen=True)
class Case:
    """num_tokens a chunk. goal: tokens/s of the oracle that ours has to reach."""

    name: str
    num_tokens: int
    goal: float | None = None
    tool_format: str = "none"
    stage: AnswerStage = AnswerStage.CONTENT


CASES = (
    Case("one_token", 1, 0.5),
    Case("four_tokens", 4, 1.0),
    Case("one_token_tools", 1, None, "dsml-v4.1"),
    Case("four_tokens_tools", 4, None, "dsml-v4.1"),
    Case("one_token_thinking", 1, None, "dsml-v4.1", AnswerStage.REASONING),
    Case("four_tokens_thinking", 4, None, "dsml-v4.1", AnswerStage.REASONING),
)

Play = Callable[[Case, Sequence[list[int]]], list[bytes]]


class Ours:
    """A fresh reader and writer for every play; tables of the vocabulary stay, as they do."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        limits = ParseLimits(max_choices=1, has_vision=False)
        self._adapter = PROTOCOLS["chat_completions"]
        self._parsed: ParsedRequest = self._adapter.parse(json.dumps(_BODY).encode(), limits)

    def play(self, case: Case, chunks: Sequence[list[int]]) -> list[bytes]:
        reader, writer = self._reader(case), self._writer(case)
        usage = TokenUsage(1, 0, 0)
        frames: list[bytes] = []
        for ids in chunks:
            events = reader.feed(ids)
            if events:
                frames += writer.write(0, events, usage)
        return frames

    def play_stream(self, case: Case, chunks: Sequence[list[int]]) -> list[bytes]:
        stream = self._stream(case)
        frames: list[bytes] = []
        seq = 0
        for ids in chunks:
            for events in stream.absorb(Delta(0, seq, ids), "d", 1, 0.0).events:
                frames += events.data
            seq += len(ids)
        return frames

    def _reader(self, case: Case) -> AnswerReader:
        plan = AnswerPlan(case.stage, ("<think>", "</think>"), case.tool_format)
        return AnswerReader(self._model.vocabulary, plan)

    def _writer(self, case: Case) -> EventWriter:
        thinks = case.stage.thinks
        facts = AnswerFacts("chatcmpl-1", "m", 0, None, self._model.vocabulary, thinks)
        return self._adapter.make_writer(facts, replace(self._parsed, stream=True))

    def _stream(self, case: Case) -> RequestStream:
        return RequestStream(
            request_id="r",
            gateway_id="g",
            adapter=self._adapter,
            writer=self._writer(case),
            choices=[Choice(self._reader(case), DeltaOrder(64), 0.0)],
            num_prompt_tokens=1,
            expires_s=0.0,
            log=EventLog(1),
            prompts=(),
        )


class Theirs:
    """The oracle, driven through its Python interface."""

    def __init__(self, tokenizer_path: str) -> None:
        self._tokenizer = deepseek_recipe.Tokenizer.from_file(tokenizer_path)

    def play(self, case: Case, chunks: Sequence[list[int]]) -> list[bytes]:
        processor = self._processor(case)
        make, push = deepseek_recipe.InferenceChunk.tokens, processor.push
        frames: list[bytes] = []
        for ids in chunks:
            for event in push(make(ids)):
                frames.append(b"data: " + event.to_json().encode() + b"\n\n")
        return frames

    def _processor(self, case: Case) -> Any:
        thinking = "enabled" if case.stage.thinks else "disabled"
        request = deepseek_recipe.ChatCompletionRequest(_BODY | {"thinking": {"type": thinking}})
        converted = request.convert(deepseek_recipe.ConversionOptions())
        make = deepseek_recipe.ChatCompletionRequest.chunk_generator
        start = deepseek_recipe.ThinkingInitialStage.ReasoningStart
        options = deepseek_recipe.ParsingOptions(
            parse_tool_calls=case.tool_format != "none",
            thinking_initial_stage=start if case.stage.thinks else None,
        )
        return deepseek_recipe.StreamProcessor(
            make(converted, "chatcmpl-1", "m"), options, self._tokenizer
        )


def text_of(frames: Sequence[bytes]) -> str:
    """What the frames say."""
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    keys = ("content", "reasoning_content")
    return "".join(delta.get(key) or "" for delta in deltas for key in keys)


def measure(case: Case, ours: Ours, theirs: Theirs, corpus: Corpus, model: ServedModel) -> bool:
    """All ways in turn on the same tokens; prints the ratio of the medians."""
    ways: dict[str, Play] = {"ours": ours.play, "stream": ours.play_stream, "oracle": theirs.play}
    times_s: dict[str, list[float]] = {name: [] for name in ways}
    ids = model.encoder.encode([corpus.take(NUM_TOKENS * 5)])[0][:NUM_TOKENS].tolist()
    chunks = [ids[at : at + case.num_tokens] for at in range(0, len(ids), case.num_tokens)]
    texts = {name: text_of(play(case, chunks)) for name, play in ways.items()}
    shortest = min(map(len, texts.values()))
    assert len({text[:shortest] for text in texts.values()}) == 1, "the sides differ"
    for _ in range(NUM_ROUNDS):
        for name, play in ways.items():
            gc.collect()
            start = time.process_time()
            play(case, chunks)
            times_s[name].append(time.process_time() - start)
    rates = {name: len(ids) / statistics.median(times) for name, times in times_s.items()}
    return emit(
        f"recipe_output_{case.name}_vs_oracle",
        rates["ours"] / rates["oracle"],
        "x",
        goal=case.goal,
        ours_tokens_per_s=round(rates["ours"]),
        with_stream_tokens_per_s=round(rates["stream"]),
        oracle_tokens_per_s=round(rates["oracle"]),
        ratio_of_best=round(min(times_s["oracle"]) / min(times_s["ours"]), 2),
        tokens=len(ids),
        rounds=NUM_ROUNDS,
    )


def main() -> int:
    """Exit code 0 when every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run cases with this in their name")
    only = parser.parse_args().only or ""
    directory = make_model_dir(None)
    model = load_served_model(RecipeSettings(model_dir=directory, prompt_encoding="auto"))
    ours, theirs = Ours(model), Theirs(str(directory / "tokenizer.json"))
    corpus = Corpus(1)
    gc.freeze()  # as the service does once its model is loaded
    results = [measure(c, ours, theirs, corpus, model) for c in CASES if only in c.name]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
