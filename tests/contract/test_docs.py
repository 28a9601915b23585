"""The site builds without a warning, needs no outside host, and names what is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.contract.distributions import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text() for page in PAGES)
LOADED = re.compile(
    r"""<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=["']?(?:https?:)?//"""
)
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//""")
CODE = re.compile(r"`([^`\n]+)`|^\$ (.+)$", re.MULTILINE)


def _said() -> list[str]:
    """What stands in backticks or behind a prompt."""
    return [inline or command for inline, command in CODE.findall(TEXT)]


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        assert not LOADED.findall(page.read_text()), page.name
    for sheet in tmp_path.rglob("*.css"):
        assert not IMPORTED.findall(sheet.read_text()), sheet.name


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9 -]*):", makefile, re.MULTILINE))
    known = {name for line in targets for name in line.split()}
    named = {
        found[1] for said in _said() if (found := re.match(r"(?:\S+=\S+ )*make ([a-z0-9-]+)", said))
    }
    assert len(named) > 8 and named <= known, named - known


def test_every_command_of_rorqual_that_is_named_exists() -> None:
    command = [sys.executable, "-m", "rorqual_cli", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^    ([a-z][a-z-]*)", told, re.MULTILINE))
    named = {
        found[1]
        for said in _said()
        if (found := re.match(r"(?:\.venv/bin/)?rorqual ([a-z-]+)", said))
    }
    assert len(named) > 8 and named <= known, named - known


def test_every_variable_that_is_named_is_a_setting() -> None:
    settings = (ROOT / "docs/settings.md").read_text()
    compose = "".join((ROOT / name).read_text() for name in ("compose.yaml", "compose.gpu.yaml"))
    named = set(re.findall(r"\bRORQUAL_[A-Z0-9_]*[A-Z0-9]\b(?![_*])", TEXT))
    unknown = {
        name for name in named if f"`{name}`" not in settings and f"${{{name}" not in compose
    }
    assert not unknown
