"""What bounded replay costs a trained model: the served passes against exact computation.

The right answer is put behind each prompt, token for token, and every pass says how likely each of
its tokens is. `exact` runs every row through every layer. `decoder tail` is how prompts are served:
late layers run on the last window of rows only, and see nothing before them. `encoder replay` goes
on from stored blocks without their windows, as after a prefix hit: the last window of stored rows
runs again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache, PageLease
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel

from bench.report import emit
from training.tiny_v41.evaluation import held_out_samples
from training.tiny_v41.rendering import Renderer, Sample

_CONTEXTS = (500, 1000, 2000, 4000, 8000)
_CHUNK_TOKENS = 512
_PAIRS = (
    ("decoder tail", "exact"),
    ("encoder replay", "decoder tail"),
    ("encoder replay", "exact"),
)


@dataclass
class Compared:
    """Of one kind of pass against another, over tokens of answers."""

    divergences: list[float] = field(default_factory=list)
    agreements: list[bool] = field(default_factory=list)

    def add(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        """fp32 log shares [N, V]; divergence of found from wanted, in nats."""
        self.divergences += (wanted.exp() * (wanted - found)).sum(-1).tolist()
        self.agreements += (found.argmax(-1) == wanted.argmax(-1)).tolist()


class Passes:
    """One model, and a cache for two sequences."""

    def __init__(self, model_dir: Path, longest: int) -> None:
        model = load_model(model_dir)
        assert isinstance(model, DeepseekModel)
        self._model = model
        self._num_pages = model.kv_layout.num_pages(longest)
        self._cache: PagedKvCache = model.new_cache(2 * self._num_pages, num_windows=2)

    def log_shares(self, sample: Sample) -> dict[str, torch.Tensor]:
        """Of the last answer's tokens, fp32 [N, V], by kind of pass."""
        ids, begin = sample.ids.tolist(), sample.last_answer
        with self._cache.allocate(self._num_pages) as first:
            exact = self._run(first, ids, begin, defers=False)
            tail = self._run(first, ids, begin, defers=True)
            with self._cache.allocate(self._num_pages) as second:
                for mine, theirs in zip(first.pages, second.pages, strict=True):
                    self._cache.pages[theirs] = self._cache.pages[mine]
                stored = (begin - 1) // PAGE_TOKENS * PAGE_TOKENS
                start = stored - self._model.num_replayed(stored)
                replay = self._run(second, ids, begin, defers=True, start=start, stored=stored)
        return {"exact": exact, "decoder tail": tail, "encoder replay": replay}

    def _run(
        self,
        lease: PageLease,
        ids: Sequence[int],
        begin: int,
        *,
        defers: bool,
        start: int = 0,
        stored: int = 0,
    ) -> torch.Tensor:
        """A prompt's rows from start on in chunks, then the answer's but its last; begin: of it."""
        found = []
        for first in [*range(start, begin, _CHUNK_TOKENS), begin]:
            is_answer = first == begin
            last = len(ids) - 1 if is_answer else min(first + _CHUNK_TOKENS, begin)
            chunk = SequenceChunk(
                ids[first:last],
                first,
                lease.pages,
                wants_logits=last >= begin,
                window=lease.window,
                window_floor=start,
                num_stored=stored,
                defers_late=defers and not is_answer,
                all_logits=is_answer,
            )
            logits = self._model.forward([chunk], self._cache)
            if chunk.wants_logits:
                found.append(logits)
        return torch.cat(found).float().log_softmax(-1)


def measured(
    passes: Passes, samples: Sequence[Sample]
) -> tuple[dict[tuple[str, str], Compared], dict[str, float]]:
    """(each kind of pass against another, share of answers whose every token is likeliest)."""
    compared = {pair: Compared() for pair in _PAIRS}
    right: dict[str, int] = {}
    for sample in samples:
        shares = passes.log_shares(sample)
        wanted = torch.from_numpy(sample.ids[sample.last_answer :])
        for kind, found in shares.items():
            right[kind] = right.get(kind, 0) + bool((found.argmax(-1) == wanted).all())
        for pair, counted in compared.items():
            counted.add(shares[pair[0]], shares[pair[1]])
    return compared, {kind: count / len(samples) for kind, count in right.items()}


def lines(passes: Passes, renderer: Renderer, seed: int, count: int) -> Iterator[str]:
    """Rows of the table, one context length after the other; a JSON line each on the way."""
    for length in _CONTEXTS:
        samples = held_out_samples(renderer, "recall", int(length * 0.95), seed, count)
        compared, scores = measured(passes, samples)
        for kind, score in scores.items():
            emit(f"replay score {kind} {length}", score, "share")
        for (kind, against), found in compared.items():
            divergence = sum(found.divergences) / len(found.divergences)
            agreement = sum(found.agreements) / len(found.agreements)
            emit(f"replay KL {kind} against {against} {length}", 1e6 * divergence, "nats / 1e6")
            emit(f"replay top-1 {kind} against {against} {length}", agreement, "share")
            yield (
                f"| {length} | {kind} | {against} | {divergence:.2g} | {max(found.divergences):.2g}"
                f" | {agreement:.1%} | {scores[kind]:.0%} | {scores[against]:.0%} |"
            )


_HEAD = """# Replay quality on trained weights

Bounded replay is an approximation: late layers run on the last 128 rows of a prompt, and windows
are rebuilt from 128 stored rows. This is what it costs `rorqual-tiny-v41`, on held-out recall
exercises (facts anywhere in a context of about so many tokens): {count} of a length, seed {seed},
over all tokens of the right answers, bf16 on a CPU. KL is of a pass from the one it is compared
with, in nats a token; the next column is the share of tokens behind which both find the same one
likeliest; a score is the share of answers whose every token is the likeliest.

Made by `make replay-quality`. The model has learned with the decoder tail, as it is served:
`exact`, which runs late layers on all rows, is what it has not seen. A model trained on all rows
would lose by the tail what this one loses without it.

| context | pass | compared with | mean KL | largest KL | top-1 | score | score of the other |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_v41.replay", description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/tiny-v41"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=24, help="exercises of a length")
    parser.add_argument("--write", type=Path, help="where the table goes")
    args = parser.parse_args()
    passes = Passes(args.model, longest=12_000)
    table = list(lines(passes, Renderer(args.model), args.seed, args.count))
    if args.write:
        head = _HEAD.format(count=args.count, seed=args.seed)
        args.write.write_text(head + "\n".join(table) + "\n", encoding="utf-8")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
