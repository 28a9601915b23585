"""Failed writes are found in what a log grows by, also after it was put aside."""

from __future__ import annotations

from pathlib import Path

from rorqual_cli.full_disk import FailedWrites

FAILURE = "[ERR] JetStream failed to store a msg: write 1.blk: no space left on device\n"


def test_each_failure_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "nats.log"
    failed = FailedWrites(path)
    assert not failed.new()  # no log yet
    path.write_text("[INF] Server is ready\n")
    assert not failed.new()
    with path.open("a") as log:
        log.write(FAILURE)
    assert [failed.new(), failed.new()] == [True, False]
    path.write_text(FAILURE)  # put aside, and begun again
    assert [failed.new(), failed.new()] == [True, False]
