"""`rorqual kv` looks at, checks, cleans and moves a store, and says what it did."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from rorqual_cli.__main__ import main
from rorqual_runtime.blockstore import BlockMark, Lifetime, Provenance
from rorqual_runtime.clock import ManualClock

from tests.support.blocks import (
    FINGERPRINT,
    SIZE,
    SLOT,
    block,
    data_files,
    find_record,
    flip_bit,
    got,
    key_of,
    open_store,
    put,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose store holds 10 blocks of one model and 2 of another, one of them expired."""
    store = open_store(tmp_path / "store", 100 * SLOT)
    for number in range(10):
        mark = BlockMark(Provenance.REPLAYED if number == 9 else Provenance.EXACT, Lifetime.CHAT)
        put(store, number, ttl_s=3600, mark=mark)
    store.put("model-b", key_of(20), bytes(100))
    store.close()
    long_ago = open_store(tmp_path / "store", 100 * SLOT, clock=ManualClock(1.6e9))
    long_ago.put("model-b", key_of(21), bytes(100), ttl_s=10)
    long_ago.close()
    return tmp_path


def run(home: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["kv", *arguments, "--home", str(home)])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def said(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_ls(home, capsys):
    assert run(home, "ls") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13 and lines[-1].startswith(key_of(21).hex())
    line = next(line for line in lines if line.startswith(key_of(9).hex()))
    assert "replayed" in line and FINGERPRINT in line and ("59m" in line or "1h" in line)
    assert run(home, "ls", "--json", "--fingerprint", FINGERPRINT, "--limit", "3") == 0
    blocks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(blocks) == 3
    assert {(b["num_bytes"], b["fingerprint"], b["lifetime"]) for b in blocks} == {
        (SIZE, FINGERPRINT, "chat")
    }


def test_stat(home, capsys):
    assert run(home, "stat", "--json") == 0
    sums = said(capsys)
    assert (sums["num_blocks"], sums["num_expired"], sums["num_expiring_in_a_day"]) == (12, 1, 10)
    assert sums["by_fingerprint"] == {FINGERPRINT: 10, "model-b": 2}
    assert sums["by_bytes"] == {str(SIZE): 10, "100": 2}
    assert sums["by_provenance"] == {"exact": 11, "replayed": 1}
    assert run(home, "stat") == 0 and "blocks: 12" in capsys.readouterr().out


def test_verify_finds_and_removes_a_damaged_block(home, capsys):
    path, offset = find_record(home / "store", key_of(3))
    flip_bit(path, offset + 5000)
    assert run(home, "verify", "--json") == 1
    assert said(capsys) == {"num_right": 10, "num_corrupt": 1, "num_gone": 1}
    assert run(home, "verify", "--json") == 0
    assert said(capsys) == {"num_right": 10, "num_corrupt": 0, "num_gone": 0}


def test_gc(home, capsys):
    assert run(home, "gc", "--json") == 0
    found = said(capsys)
    assert (found["num_expired"], found["num_removed"], found["num_left"]) == (1, 0, 11)
    assert run(home, "gc", "--json", "--fingerprint", "model-b") == 0
    assert said(capsys)["num_removed"] == 1
    assert run(home, "gc", "--json", "--unused-days", "1") == 0
    assert said(capsys)["num_removed"] == 0
    assert run(home, "gc", "--json", "--all") == 0
    found = said(capsys)
    assert (found["num_removed"], found["allocated_bytes"]) == (10, 0)
    assert data_files(home / "store") == []


def test_blocks_move_by_archive(home, tmp_path, capsys):
    archive = tmp_path / "blocks"
    assert run(home, "export", "--json", str(archive), "--fingerprint", FINGERPRINT) == 0
    assert said(capsys) == {"num_written": 10, "num_lost": 0}
    other = tmp_path / "other"
    assert run(home, "import", "--json", str(archive), "--store", str(other)) == 0
    assert said(capsys) == {"num_kept": 10, "num_expired": 0, "num_refused": 0}
    store = open_store(other, 8 << 30)
    assert all(got(store, number) == block(number) for number in range(10))
    assert {(b.mark.lifetime, b.expires_unix_s is None) for b in store.listing()} == {
        (Lifetime.CHAT, False)
    }
    store.close()


@pytest.mark.parametrize("harm", ["cut", "bit", "other"])
def test_a_damaged_archive_is_refused_and_says_where(home, tmp_path, capsys, harm):
    archive = tmp_path / "blocks"
    assert run(home, "export", str(archive)) == 0
    if harm == "cut":
        archive.write_bytes(archive.read_bytes()[:-3])
    elif harm == "bit":
        flip_bit(archive, archive.stat().st_size // 2)
    else:
        archive.write_bytes(b"something else")
    capsys.readouterr()
    assert run(home, "import", str(archive), "--store", str(tmp_path / "other")) == 1
    error = capsys.readouterr().err
    words = {"cut": "ends within", "bit": "damaged at block", "other": "not an archive"}
    assert words[harm] in error and str(archive) in error


def test_what_is_no_store_is_not_made_one(tmp_path, capsys):
    assert run(tmp_path, "ls") == 1
    assert "no block store" in capsys.readouterr().err and not list(tmp_path.iterdir())
    assert run(tmp_path, "stat", "--store", "redis://127.0.0.1:9/0") == 1
    assert "does not answer" in capsys.readouterr().err


def test_looking_at_blocks_is_no_use_of_them(home, capsys):
    hour_ago = open_store(home / "store", 100 * SLOT, clock=ManualClock(time.time() - 3600))
    hour_ago.put("model-c", key_of(22), bytes(100))
    hour_ago.close()
    assert run(home, "verify", "--json") == 0
    assert run(home, "export", str(home / "blocks")) == 0
    capsys.readouterr()
    assert run(home, "ls", "--json", "--fingerprint", "model-c") == 0
    assert said(capsys)["num_uses"] == 0


def test_blocks_of_a_model_whose_name_is_lost_are_counted_checked_and_removed(home, capsys):
    for name in (home / "store" / "fingerprints").iterdir():
        name.unlink()
    assert run(home, "stat", "--json") == 0
    counts = {count: name for name, count in said(capsys)["by_fingerprint"].items()}
    assert counts.keys() == {10, 2} and counts[10].startswith("unnamed:")
    assert run(home, "verify", "--json", "--fingerprint", counts[10]) == 0
    assert said(capsys)["num_right"] == 10
    assert run(home, "gc", "--json", "--fingerprint", counts[10]) == 0
    sums = said(capsys)
    assert (sums["num_removed"], sums["num_left"]) == (10, 0)
