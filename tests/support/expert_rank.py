"""One rank of a group, as a process: runs a script of steps and writes down what it got.

Arguments: a JSON file {model_dir, address, rank, size, timeout_s, dtype, slots, script, out}.
script: a list of steps, each null (no work), {"die": true}, {"hang": s}, {"move": [layer, table],
"fails": whether this rank has no memory for it} or a list of chunks {sequence, tokens, wants,
defers}; positions, pages and window slots are kept here by sequence.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk
from rorqual_engine.kv import PageLease
from rorqual_engine.lockstep import LockStep
from rorqual_engine.models import load_model
from rorqual_engine.models.deepseek.model import DeepseekModel
from rorqual_engine.models.deepseek.remote_experts import MoveFailed
from rorqual_engine.models.options import LoadOptions
from rorqual_engine.parallel import ExpertGroup, ExpertPlacement, GroupLost, ProcessExchange

MAX_PAGES = 3


class Rank:
    """A model and a group; with one rank only, no group."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.exchange, options = None, LoadOptions()
        if job["size"] > 1:
            self.exchange = ProcessExchange(
                job["address"], job["rank"], job["size"], timeout_s=job["timeout_s"]
            )
            tables = {
                int(layer): ExpertPlacement.from_slots(16, slots, job["size"])
                for layer, slots in job["slots"].items()
            }
            options = LoadOptions(group=ExpertGroup(self.exchange, tables))
        model = load_model(Path(job["model_dir"]), dtype=job["dtype"], options=options)
        assert isinstance(model, DeepseekModel)
        self.model, self.cache = model, model.new_cache(24)
        self._leases: dict[str, PageLease] = {}
        self._positions: dict[str, int] = {}

    def chunk(self, given: dict[str, Any]) -> SequenceChunk:
        name = given["sequence"]
        if name not in self._leases:
            self._leases[name] = self.cache.allocate(MAX_PAGES)
            self._positions[name] = 0
        lease, start = self._leases[name], self._positions[name]
        self._positions[name] += len(given["tokens"])
        return SequenceChunk(
            given["tokens"], start, lease.pages, given.get("wants", True), lease.window,
            defers_late=given.get("defers", True),
        )  # fmt: skip

    def move(self, layer: int, table: list[list[int]], *, fails: bool) -> str | None:
        """Why the experts stay, if they do."""
        kind = type(self.model._layers[layer].moe._experts)
        lacking = patch.object(kind, "prepare", side_effect=MemoryError("no room"))
        with lacking if fails else nullcontext():
            try:
                self.model.move_experts(layer, tuple(tuple(held) for held in table))
            except MoveFailed as err:
                return str(err)
        return None

    def step(self, given: list[dict[str, Any]]) -> torch.Tensor | str | None:
        chunks = [self.chunk(each) for each in given]
        try:
            if self.exchange is None:
                return self.model.forward(chunks, self.cache) if chunks else None
            return LockStep(self.model, self.cache, self.exchange).step(chunks)
        except BadChunk as err:
            return str(err)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """What every step gave, and how long the last one took."""
    rank = Rank(job)
    result: dict[str, Any] = {"steps": [], "moves": [], "lost": None}
    start = time.monotonic()
    try:
        for given in job["script"]:
            start = time.monotonic()
            if isinstance(given, dict) and "die" in given:
                os._exit(9)
            if isinstance(given, dict) and "move" in given:
                if rank.exchange is not None:
                    moved = rank.move(*given["move"], fails=given.get("fails", False))
                    result["moves"].append(moved)
                continue
            if isinstance(given, dict):
                _stop_for(given["hang"])
                continue
            result["steps"].append(rank.step(given or []))
        if rank.exchange is not None:
            LockStep(rank.model, rank.cache, rank.exchange).leave()
            rank.exchange.close()
    except GroupLost as err:
        result["lost"] = str(err)
    result["last_s"] = time.monotonic() - start
    if result["lost"] and rank.exchange is not None:
        result["again_lost"] = _is_lost_at_once(rank.exchange)
    loads = rank.model.layer_loads()
    result["counts"] = torch.from_numpy(np.stack([load.counts for load in loads]))
    result["imbalance"] = [load.imbalance for load in loads]
    result["tables"] = [[list(held) for held in table] for table in rank.model.expert_tables()]
    return result


def _is_lost_at_once(exchange: ProcessExchange) -> bool:
    start = time.monotonic()
    try:
        exchange.agree(0)
    except GroupLost:
        return time.monotonic() - start < 2.0
    return False


def _stop_for(seconds: float) -> None:
    """Stops the whole process, as a machine that stands still would."""
    if os.fork() == 0:
        time.sleep(seconds)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.save(run(job), job["out"])
    os._exit(0)  # threads of a lost group may never end


if __name__ == "__main__":
    main()
