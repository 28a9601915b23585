"""scripts/setup.sh: what ends it early is made good by the next run, and every end has its line.

Python and pip are played by a shell script that writes down what it was asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.fleet import ROOT

FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
"-m venv"*)
    mkdir -p .venv/bin
    cp "$FAKE/python" .venv/bin/python
    echo "#!$(pwd -P)/.venv/bin/python" >.venv/bin/pip
    ;;
"-m pip --version") [[ ! -e .venv/broken ]] ;;
"-m pip install"*)
    echo "$*" >>"$FAKE/installs"
    echo "  Downloading torch-2.13.0-cp311-linux_x86_64.whl (200.1 MB)"
    num_tries=$(grep -c requirements-dev "$FAKE/installs")
    if [[ "$*" == *requirements-dev* && $num_tries -le "${FAILURES:-0}" ]]; then
        echo "ERROR: connection reset"
        exit 1
    fi
    ;;
"-c import venv"*) exit "${NO_VENV:-0}" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with what set-up reads."""
    (tmp_path / "scripts").mkdir()
    script = (ROOT / "scripts/setup.sh").read_text()
    (tmp_path / "scripts/setup.sh").write_text(script.replace("pause_s=3", "pause_s=0"))
    fake = tmp_path / "fake" / "python"
    fake.parent.mkdir()
    fake.write_text(FAKE_PYTHON)
    fake.chmod(0o755)
    return tmp_path


def set_up(checkout: Path, **env: str) -> subprocess.CompletedProcess[str]:
    fake = str(checkout / "fake")
    return subprocess.run(
        ["bash", str(checkout / "scripts/setup.sh")],
        env={**os.environ, "FAKE": fake, "PYTHON": f"{fake}/python", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_installed(checkout: Path) -> bool:
    return (checkout / ".venv/.installed").exists()


def num_installs(checkout: Path) -> int:
    return (checkout / "fake/installs").read_text().count("requirements-dev")


def test_a_download_that_breaks_off_is_tried_again(checkout: Path) -> None:
    done = set_up(checkout, FAILURES="2")
    assert done.returncode == 0, done.stderr
    assert num_installs(checkout) == 3
    assert is_installed(checkout)
    assert "  Downloading torch-2.13.0-cp311-linux_x86_64.whl (200.1 MB)" in done.stdout


def test_what_never_works_ends_with_one_line_and_counts_as_not_installed(checkout: Path) -> None:
    assert set_up(checkout).returncode == 0
    failed = set_up(checkout, FAILURES="99")
    assert failed.returncode == 1
    assert "ERROR: connection reset" in failed.stdout
    assert failed.stderr.startswith("setup: packages could not be installed")
    assert "remedy: check the network" in failed.stderr
    assert not is_installed(checkout), "an earlier success says nothing about now"
    assert set_up(checkout).returncode == 0
    assert is_installed(checkout)


def test_an_environment_that_is_broken_or_was_copied_here_is_made_anew(checkout: Path) -> None:
    assert "creating .venv" in set_up(checkout).stdout
    assert "creating .venv" not in set_up(checkout).stdout
    (checkout / ".venv/broken").touch()
    assert "creating .venv" in set_up(checkout).stdout
    shutil.copytree(checkout, copy := checkout / "copy")
    assert "creating .venv" in set_up(copy).stdout


@pytest.mark.parametrize(
    ("change", "env", "said"),
    [
        ("need_gb=6", {}, "setup: .* GB free in .* need 999999 GB; remedy: free some disk space"),
        ("", {"NO_VENV": "1"}, "has no venv module; remedy: apt-get install -y python3-venv"),
    ],
)
def test_what_the_machine_lacks_is_named_with_its_remedy(
    checkout: Path, change: str, env: dict[str, str], said: str
) -> None:
    script = checkout / "scripts/setup.sh"
    if change:
        script.write_text(script.read_text().replace(change, "need_gb=999999"))
    failed = set_up(checkout, **env)
    assert failed.returncode == 1
    assert re.search(said, failed.stderr)
    assert failed.stderr.count("\n") == 1
    assert not is_installed(checkout)
