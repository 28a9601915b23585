"""Curves: every point follows from its step's time, and both files are written."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from rorqual_cli.__main__ import main
from rorqual_cli.curves import decode_points, prefill_points

from tests.support.model import default_model_dir


def test_cards_share_a_step() -> None:
    (point,) = prefill_points([(4096, 0.5)], num_ranks=8)
    assert (point.tokens_per_rank, point.step_ms) == (512, 500)
    assert point.tokens_per_s_per_card == 1024
    (point,) = decode_points([(64, 0.02)], num_ranks=2)
    assert (point.tokens_per_s_per_user, point.tokens_per_s_per_card) == (50, 1600)


@pytest.mark.parametrize(
    ("kind", "largest", "sizes"), [("prefill", 40, [16, 32, 40]), ("decode", 3, [1, 2, 3])]
)
def test_a_curve_is_written(tmp_path: Path, kind: str, largest: int, sizes: list[int]) -> None:
    out = tmp_path / "curve-1.5"
    arguments = ["bench", kind, "--largest", str(largest), "--seconds", "0.5", "--context", "8"]
    arguments += ["--model", str(default_model_dir()), "--home", str(tmp_path), "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    curve = json.loads((tmp_path / "curve-1.5.json").read_text())
    key = "tokens_per_rank" if kind == "prefill" else "num_running"
    assert [point[key] for point in curve["points"]] == sizes
    assert all(a[key] < b[key] for a, b in pairwise(curve["points"]))
    assert all(point["tokens_per_s_per_card"] > 0 for point in curve["points"])
    assert (tmp_path / "curve-1.5.png").stat().st_size > 5000


def test_a_context_of_less_than_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "decode", "--context=-5"])
    assert ended.value.code == 2
    assert "'-5' is not a number of tokens" in capsys.readouterr().err
