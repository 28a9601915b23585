"""The command line: every failure is one line with an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rorqual_cli.__main__ import main
from rorqual_cli.problems import ExitCode


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--port", "abc", "'abc' is not a whole number"),
        ("--port", "99999", "between 0 and 65535"),
        ("--decode", "0", "at least 1"),
        ("--drain", "-1", "'-1' is not a number of seconds"),
        ("--drain", "nan", "'nan' is not a number of seconds"),
    ],
)
def test_a_wrong_option_is_explained(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("up", f"{option}={value}") == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_home_that_cannot_be_written_is_one_line(
    tmp_path: Path, detach: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    home = str(tmp_path / "file")
    assert exit_code("up", "--home", home, "--port", "0", *detach) == ExitCode.FAILED
    err = capsys.readouterr().err
    assert err.startswith("rorqual: ")
    assert err.count("\n") == 1


def test_a_broker_that_is_away_is_one_line_soon(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("ps", "--nats-url", "nats://127.0.0.1:1") == ExitCode.FAILED
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_that_leaves_ends_the_output_quietly(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        down = [sys.executable, "-m", "rorqual_cli", "down", "--home", str(tmp_path)]
        run = subprocess.run(down, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert (run.returncode, run.stderr) == (128 + signal.SIGPIPE, b"")
