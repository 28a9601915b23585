"""Two processes share the experts of one model: outputs are those of one process, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rorqual_cli.servers import free_port
from rorqual_engine.prepare.random_v41 import write_random_v41

from tests.support import expert_rank

TOKENS = np.random.default_rng(3).integers(2, 4000, 600).tolist()


def _chunk(sequence: str, first: int, last: int, **options: bool) -> dict[str, Any]:
    return {"sequence": sequence, "tokens": TOKENS[first:last], **options}


BAD = {"sequence": "bad", "tokens": [999_999]}
SCRIPTS: list[list[Any]] = [
    [
        [_chunk("a", 0, 140, wants=False)],
        [_chunk("a", 140, 190), _chunk("b", 200, 201)],
        [_chunk("a", 190, 191, defers=False), _chunk("b", 201, 202, defers=False)],
        None,
        [_chunk("c", 0, 30, wants=False)],
        [_chunk("a", 191, 192, defers=False)],
    ],
    [
        None,
        [_chunk("d", 300, 420, wants=False)],
        [_chunk("d", 420, 440)],
        [_chunk("d", 440, 441, defers=False)],
        [BAD],
        [_chunk("e", 0, 1, defers=False)],
        None,
        [_chunk("e", 1, 3, defers=False)],
    ],
]
REPLICAS = {"0": [*range(10), *range(6, 16)], "7": [*reversed(range(16)), 3, 4][:16]}

EVEN = [[*range(8)], [*range(8, 16)]]
SWAPPED = [[*range(7), 15], [*range(8, 15), 7]]
MOVES = {
    "bfloat16": [(0, [[*range(9), 12], [0, *range(7, 16)]]), (7, [[0, *range(14, 7, -1)],
                                                                  [*range(7, 0, -1), 15]])],
    "float32": [(0, SWAPPED), (7, SWAPPED)],
}  # fmt: skip


def _with_moves(rank: int, script: list[Any], dtype: str) -> list[Any]:
    """A layer changes its table, another one can't because rank 1 has no memory, then it can."""
    first, second = ({"move": list(move)} for move in MOVES[dtype])
    refused = {**second, "fails": rank == 1}
    return [*script[:2], first, script[2], refused, script[3], second, *script[4:]]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("v41")
    write_random_v41(directory, changes={"vision_config": None, "dspark_config": None})
    return directory


def _free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def _job(model_dir: Path, **changes: Any) -> dict[str, Any]:
    job = {"model_dir": str(model_dir), "rank": 0, "size": 1, "timeout_s": 100.0}
    return {**job, "dtype": "bfloat16", "slots": {}, **changes}


def _run_group(model_dir: Path, tmp_path: Path, scripts: list[list[Any]], **options: Any) -> Any:
    """Results by rank; None for one that died."""
    address, processes, outs = _free_address(), [], []
    for rank, script in enumerate(scripts):
        out, path = tmp_path / f"out-{rank}.pt", tmp_path / f"job-{rank}.json"
        job = _job(model_dir, address=address, rank=rank, size=2, script=script, out=str(out))
        path.write_text(json.dumps(job | options))
        command = [sys.executable, "-m", "tests.support.expert_rank", str(path)]
        processes.append(subprocess.Popen(command))
        outs.append(out)
    try:
        for process in processes:
            process.wait(timeout=250)
    finally:
        for process in processes:
            process.kill()
    return [torch.load(out, weights_only=True) if out.exists() else None for out in outs]


def _alone(model_dir: Path, script: list[Any], dtype: str) -> dict[str, Any]:
    return expert_rank.run(_job(model_dir, script=script, dtype=dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_outputs_are_those_of_one_process(model_dir: Path, tmp_path: Path, dtype: str) -> None:
    """Before, between and after moves of experts, one of which fails."""
    slots = REPLICAS if dtype == "bfloat16" else {}
    scripts = [_with_moves(rank, script, dtype) for rank, script in enumerate(SCRIPTS)]
    group = _run_group(model_dir, tmp_path, scripts, dtype=dtype, slots=slots)
    for rank, script in enumerate(SCRIPTS):
        alone, found = _alone(model_dir, script, dtype), group[rank]
        assert found["lost"] is None
        tolerance = 0 if dtype == "bfloat16" else 1e-4
        assert _num_equal(found["steps"], alone["steps"], tolerance) == [5, 4][rank]
        if dtype == "bfloat16":
            assert torch.equal(found["counts"], alone["counts"])
        refusal = "layer 7 keeps its table: unpacking failed on ranks [1]"
        assert found["moves"] == [None, refusal, None]
        for layer, table in MOVES[dtype]:
            assert found["tables"][layer] == table
        assert found["tables"][1] == EVEN
        assert 1.0 <= min(found["imbalance"]) <= max(found["imbalance"]) <= 2.0


def _num_equal(found: list[Any], expected: list[Any], tolerance: float) -> int:
    """Rows of logits compared; what was refused is refused alike."""
    compared = 0
    for mine, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
            compared += len(theirs)
        elif isinstance(theirs, str):
            assert mine == theirs and "token id" in mine
        else:
            assert mine is None or not len(mine)
    return compared


def test_counts_are_rows_times_choices(model_dir: Path) -> None:
    counts = _alone(model_dir, [[_chunk("a", 0, 200)]], "bfloat16")["counts"]
    assert counts.shape == (10, 16)
    assert counts.sum(1).tolist() == [200 * 3] * 5 + [128 * 3] * 5


def test_a_dead_rank_ends_the_group(model_dir: Path, tmp_path: Path) -> None:
    step = [_chunk("a", 0, 5)]
    scripts: list[list[Any]] = [[step, step, step], [step, {"die": True}]]
    found, dead = _run_group(model_dir, tmp_path, scripts)
    assert dead is None
    assert "rank 0 of 2 lost its group during" in found["lost"]
    assert len(found["steps"]) == 1
    assert found["again_lost"]


def test_a_hanging_rank_is_waited_for_so_long_and_no_longer(
    model_dir: Path, tmp_path: Path
) -> None:
    step = [_chunk("a", 0, 5)]
    scripts: list[list[Any]] = [[step, step, step], [step, {"hang": 9.0}, step]]
    found, late = _run_group(model_dir, tmp_path, scripts, timeout_s=4.0)
    assert found["lost"] and found["last_s"] > 3.5
    assert late["lost"]


def test_a_rank_that_never_comes_is_waited_for_so_long(tmp_path: Path) -> None:
    from rorqual_engine.parallel import GroupLost, ProcessExchange

    with pytest.raises(GroupLost, match="rank 1 of 2 lost its group during joining"):
        ProcessExchange(_free_address(), 1, 2, timeout_s=1.0)
    with pytest.raises(ValueError, match="rank 2 is not among"):
        ProcessExchange(_free_address(), 2, 2)
