"""Time to the first token of a prompt whose blocks are all stored, over that of as long a cold one.

A fleet of one instance of each service, over HTTP, one request at a time. The default model is
asked with as many tokens as its context takes, random-v41 with 16K. A cold prompt is new from its
first token on; a warm one was answered once and all its blocks are in the store. The last tokens,
fewer than a block and one, are always computed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rorqual_policy import BLOCK_TOKENS

from bench.http_load import Endpoint, StreamTiming, completion_body, stream_once
from bench.report import at_most, emit
from tests.support.fleet import RunningFleet, running_fleet
from tests.support.model import random_v41_dir

GOAL = 1 / 20
STORED_TIMEOUT_S = 60.0
CALIBRATED = {"RORQUAL_PREFILL_CALIBRATE_S": "1"}
"""As shipped: whether blocks are read or computed is decided by measured costs."""


@dataclass(frozen=True)
class Case:
    """A model, how long its prompts are, and ids that are plain text in it."""

    name: str
    served: str
    num_tokens: int
    id_range: tuple[int, int]


DEFAULT = Case("smollm2_8k", "smollm2-135m-instruct", 8191, (100, 40_000))
V41 = Case("v41_16k", "random-v41", 16_383, (3, 4000))


def ask(fleet: RunningFleet, case: Case, token_ids: list[int]) -> StreamTiming:
    """One token behind this prompt."""
    parts = urlsplit(fleet.base_url)
    assert parts.hostname and parts.port
    body = completion_body(case.served, token_ids, max_tokens=1)
    return asyncio.run(stream_once(Endpoint(parts.hostname, parts.port), body))


def wait_until_stored(fleet: RunningFleet, num_blocks: int) -> None:
    """Blocks are written and registered behind the answer."""
    end_s = time.monotonic() + STORED_TIMEOUT_S
    while sum(load.kvmeta.num_blocks for load in fleet.loads().values()) < num_blocks:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{num_blocks} blocks were not stored in {STORED_TIMEOUT_S:.0f} s")
        time.sleep(0.2)


def bench(case: Case, model: dict[str, str], *, rounds: int, hits_per_round: int) -> bool:
    """Cold and warm in turns; a ratio is of one round."""
    dice = random.Random(0)
    cold_s, hit_s, ratios = [], [], []
    with (
        tempfile.TemporaryDirectory(prefix="rorqual-bench-") as home,
        running_fleet(Path(home), env=CALIBRATED, **model) as fleet,
    ):
        ask(fleet, case, [dice.randrange(*case.id_range) for _ in range(300)])
        num_blocks = 300 // BLOCK_TOKENS
        for _ in range(rounds):
            prompt = [dice.randrange(*case.id_range) for _ in range(case.num_tokens)]
            cold = ask(fleet, case, prompt)
            assert (cold.prompt_tokens, cold.cached_tokens) == (case.num_tokens, 0)
            num_blocks += case.num_tokens // BLOCK_TOKENS
            wait_until_stored(fleet, num_blocks)
            hits = [ask(fleet, case, prompt) for _ in range(hits_per_round)]
            num_cached = (case.num_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
            assert {hit.cached_tokens for hit in hits} == {num_cached}, hits
            cold_s.append(cold.ttft_s)
            hit_s += [hit.ttft_s for hit in hits]
            ratios.append(statistics.median(hit.ttft_s for hit in hits) / cold_s[-1])
    emit(f"kv_ttft_cold_{case.name}", statistics.median(cold_s), "s", tokens=case.num_tokens)
    emit(f"kv_ttft_hit_{case.name}", statistics.median(hit_s), "s", rounds=_rounded(hit_s))
    return emit(
        f"kv_ttft_hit_over_cold_{case.name}",
        statistics.median(ratios),
        "ratio",
        goal=GOAL,
        passes=at_most,
        rounds=_rounded(ratios),
    )


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def main() -> int:
    """Returns: 0 when every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="cold prompts a model")
    parser.add_argument("--hits", type=int, default=5, help="repetitions of each")
    parser.add_argument("--only", choices=[DEFAULT.name, V41.name])
    options = parser.parse_args()
    print(f"cpus {os.cpu_count()}, load {os.getloadavg()}", file=sys.stderr)
    met = [
        bench(case, model, rounds=options.rounds, hits_per_round=options.hits)
        for case, model in ((DEFAULT, {}), (V41, {"model": str(random_v41_dir())}))
        if options.only in (None, case.name)
    ]
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
