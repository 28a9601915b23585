"""Every command of the README and of docs/ works, asked of the shared fleet.

Blocks marked ```console and ```python are run as they stand but for the address; a line
`<!-- not run: reason -->` before a block says why it is not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import httpx
import pytest

from tests.support.fleet import ROOT, RunningFleet

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
WRITTEN_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 120.0
_BLOCK = re.compile(r"(?:^(?P<before>[^\n]*)\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_REASON = re.compile(r"<!-- not run: (?P<reason>[^>]+) -->")
_KINDS = {"console", "python", ""}


@dataclass(frozen=True)
class Block:
    """One fenced block. reason: why it is not run."""

    page: str
    number: int
    kind: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}-{self.number}"

    def commands(self) -> list[str]:
        """Of a console block: what stands behind `$`, with the lines that continue it."""
        found: list[str] = []
        is_open = False
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(line[2:])
            elif is_open:
                found[-1] += f"\n{line}"
            is_open = bool(found) and _is_unfinished(found[-1])
        return found


def _is_unfinished(command: str) -> bool:
    return command.endswith("\\") or command.count("'") % 2 == 1


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text()), start=1):
            said = _REASON.fullmatch(match["before"] or "")
            reason = said["reason"] if said else ""
            found.append(Block(page.stem, number, match["kind"], match["text"], reason))
    return found


RUN = [block for block in blocks() if block.kind and not block.reason]


def test_blocks_are_run_or_say_why_not() -> None:
    assert len(RUN) > 8
    unknown = {str(block): block.kind for block in blocks() if block.kind not in _KINDS}
    assert not unknown
    hidden = [str(b) for b in blocks() if not b.kind and re.search(r"^\$ ", b.text, re.MULTILINE)]
    assert not hidden, "commands in a block without a kind are not run"


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_works(block: Block, shared_fleet: RunningFleet) -> None:
    if block.kind == "python":
        _run([sys.executable, "-c", block.text.replace(WRITTEN_URL, shared_fleet.base_url)])
        return
    commands = block.commands()
    assert commands, "a console block shows commands behind `$ `"
    for command in commands:
        home = {"RORQUAL_HOME": str(shared_fleet.home)} if "rorqual" in command else {}
        script = command.replace(WRITTEN_URL, shared_fleet.base_url)
        script = script.replace(".venv/bin/rorqual", f"{sys.executable} -m rorqual_cli")
        _run(["bash", "-c", script], **home)


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
    assert done.stdout.strip(), f"{command[-1]} says nothing"


def test_the_page_of_the_api_names_every_endpoint(shared_fleet: RunningFleet) -> None:
    page = (ROOT / "docs/api.md").read_text()
    paths = httpx.get(f"{shared_fleet.base_url}/openapi.json", timeout=TIMEOUT_S).json()["paths"]
    missing = [path for path in paths if f" {path}`" not in page]
    assert not missing
