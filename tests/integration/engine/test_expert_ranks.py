"""A model that leads workers of its own: the same tokens, and what happens when one side dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_engine.batch import SequenceChunk
from rorqual_engine.errors import BadChunk, UnsupportedModel
from rorqual_engine.expert_balance import BalanceParams, OnDecision
from rorqual_engine.expert_ranks import ExpertRanks, LeadingModel, open_model
from rorqual_engine.models import load_model
from rorqual_engine.parallel import BadPlacement, GroupLost
from rorqual_engine.parallel.split import SplitBy
from rorqual_engine.prepare.random_v41 import write_random_v41
from rorqual_engine.runner import BareEngine, GenerationParams
from rorqual_policy.expert_rebalance import decide_rebalance

from tests.support.waiting import until_blocking

PARAMS = GenerationParams(8, ignore_eos=True)
LEADER = """
import sys, time
from pathlib import Path
from rorqual_engine.expert_balance import BalanceParams, OnDecision
from rorqual_engine.expert_ranks import ExpertRanks, open_model
with open_model(Path(sys.argv[1]), ranks=ExpertRanks(2)) as model:
    print(model.worker_pids[0], flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v41")
    write_random_v41(directory, changes={"vision_config": None, "dspark_config": None})
    return directory


def _prompts() -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(3, 4000, length).tolist() for length in (1, 200, 70)]


@pytest.mark.parametrize("size", [2, 3])
def test_tokens_are_those_of_one_process(model_dir: Path, tmp_path: Path, size: int) -> None:
    """Of two ranks each has copies of the other's experts, used by recent counts; of three the
    first has no expert of layer 0 but one."""
    expected = BareEngine(load_model(model_dir)).generate(_prompts(), PARAMS)
    placement = tmp_path / "placement.json"
    placement.write_text(json.dumps({"0": [[3], [0, 1, 2], list(range(4, 16))]}))
    ranks = ExpertRanks(3, placement)
    if size == 2:
        ranks = ExpertRanks(2, num_redundant=4, split=SplitBy.RECENT)
    with open_model(model_dir, ranks=ranks) as model:
        assert isinstance(model, LeadingModel) and len(model.worker_pids) == size - 1
        engine = BareEngine(model, chunk_tokens=96)
        assert engine.generate(_prompts(), PARAMS) == expected
        bad = SequenceChunk([9_999_999], 0, [0], True, 0)
        with pytest.raises(BadChunk):
            model.forward([bad], engine.cache)
        until_blocking(lambda: _are_idle(model.worker_pids), "workers that wait without computing")
        assert engine.generate(_prompts(), PARAMS) == expected
        pids = model.worker_pids
    assert not any(_is_alive(pid) for pid in pids)


def test_experts_move_while_it_generates(model_dir: Path) -> None:
    """By themselves, few at a time, and not a token changes."""
    expected = BareEngine(load_model(model_dir)).generate(_prompts(), PARAMS)
    ranks = ExpertRanks(2, balance=BalanceParams(interval_s=1.8, max_changes=2))
    decisions: list[tuple[Any, Any]] = []
    note: OnDecision = lambda _, given, decision: decisions.append((given, decision))  # noqa: E731
    with open_model(model_dir, ranks=ranks, on_decision=note) as model:
        assert isinstance(model, LeadingModel)
        before, engine = model.expert_tables(), BareEngine(model)
        changed: list[int] = []

        def has_moved() -> bool:
            assert engine.generate(_prompts(), PARAMS) == expected
            changed[:] = [load.num_moved for load in model.layer_loads()]
            return sum(changed) > 4

        until_blocking(has_moved, "experts that move")
        assert engine.generate(_prompts(), PARAMS) == expected
        assert model.expert_tables() != before
        assert len(model.expert_loads) == len(before)
        with pytest.raises(BadPlacement, match="no rank holds"):
            model.plan_tables({0: (before[0][0], before[0][0])})
    assert {decision.reason for _, decision in decisions} >= {"gain"}
    for given, decision in decisions[:20]:
        assert decide_rebalance(*given) == decision


def test_a_dead_worker_ends_the_group(model_dir: Path) -> None:
    """It is noticed at once, also while nothing is computed."""
    lost: list[GroupLost] = []
    with open_model(model_dir, ranks=ExpertRanks(2), on_lost=lost.append) as model:
        assert isinstance(model, LeadingModel)
        engine = BareEngine(model)
        engine.generate([[5, 6, 7]], PARAMS)
        os.kill(model.worker_pids[0], signal.SIGKILL)
        until_blocking(lambda: lost)
        assert "rank 1 has ended (killed by signal 9)" in str(lost)
        with pytest.raises(GroupLost, match="rank 1 has ended"):
            engine.generate([[5, 6, 7]], PARAMS)
    assert len(lost) == 1


def test_a_worker_that_hangs_is_waited_for_so_long(model_dir: Path) -> None:
    lost: list[GroupLost] = []
    ranks = ExpertRanks(2, timeout_s=10.0)
    with open_model(model_dir, ranks=ranks, on_lost=lost.append) as model:
        assert isinstance(model, LeadingModel)
        os.kill(model.worker_pids[0], signal.SIGSTOP)
        with pytest.raises(GroupLost):
            BareEngine(model).generate([[5, 6, 7]], PARAMS)
    assert len(lost) == 1


def test_workers_end_with_their_leader(model_dir: Path) -> None:
    command = [sys.executable, "-c", LEADER, str(model_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        said = (line for line in leader.stdout if line.strip().isdigit())
        worker = int(next(said))
        assert _is_alive(worker)
        leader.kill()
    until_blocking(lambda: not _is_alive(worker))


def test_what_cannot_be_shared_is_refused(model_dir: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UnsupportedModel, match="between CPUs or GPUs, not on meta"),
        open_model(model_dir, device="meta", ranks=ExpertRanks(2)),
    ):
        pass
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with (
        pytest.raises(UnsupportedModel, match="no experts"),
        open_model(tmp_path, ranks=ExpertRanks(2)),
    ):
        pass
    for text in ("{", "[]", '{"0": [[0], "x"]}', '{"0": [[0], [2]]}'):
        (tmp_path / "bad.json").write_text(text)
        with (
            pytest.raises(BadPlacement),
            open_model(model_dir, ranks=ExpertRanks(2, tmp_path / "bad.json")),
        ):
            pass


def test_one_rank_is_a_plain_model(model_dir: Path) -> None:
    with open_model(model_dir) as model:
        assert not isinstance(model, LeadingModel) and model.dtype == torch.bfloat16


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def _is_alive(pid: int) -> bool:
    try:
        return _stat(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _are_idle(pids: Sequence[int]) -> bool:
    """Whether they use no time of a processor for half a second."""
    before = [_cpu_s(pid) for pid in pids]
    time.sleep(0.5)
    return [_cpu_s(pid) for pid in pids] == before


def _cpu_s(pid: int) -> float:
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
