"""Compose is driven by its command line: by a recorded one here, by the real one where it is."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rorqual_scaler.compose import Compose, ComposeParams
from rorqual_scaler.drivers import DriverError

from tests.support.waiting import soon, until

ROOT = Path(__file__).parents[3]
FAKE = """#!{python}
import json, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
counts = json.loads((here / "counts").read_text())
arguments = sys.argv[1:]
if "ps" in arguments:
    print("\\n".join("%064x" % n for n in range(counts[arguments[-1]])))
elif "--scale" in arguments:
    service, _, num = arguments[arguments.index("--scale") + 1].partition("=")
    if service not in counts:
        sys.exit("no such service: " + service)
    if service == "recipe":
        child = subprocess.Popen(["sleep", "600"])
        (here / "child").write_text(str(child.pid))
        child.wait()
    (here / "counts").write_text(json.dumps(dict(counts, **{{service: int(num)}})))
"""
"""What `docker compose` says and does, as far as we ask: `ps --quiet` prints a container a line."""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    command = tmp_path / "docker-compose"
    command.write_text(FAKE.format(python=sys.executable))
    command.chmod(0o755)
    (tmp_path / "counts").write_text(json.dumps({"decode": 1, "prefill": 2, "recipe": 1}))
    return command


def compose(command: Path | str, timeout_s: float = 30.0) -> Compose:
    params = ComposeParams((str(command),), Path("compose.yaml"), "rorqual", timeout_s)
    return Compose(params)


async def test_counts_are_read_and_written(fake: Path) -> None:
    orchestrator = compose(fake)
    assert await orchestrator.read_count("prefill") == 2
    await orchestrator.write_count("decode", 4)
    assert await orchestrator.read_count("decode") == 4
    calls = [json.loads(line) for line in (fake.parent / "calls").read_text().splitlines()]
    chosen = ["--file", "compose.yaml", "--project-name", "rorqual"]
    assert all(call[:4] == chosen for call in calls)
    scale = ["up", "--detach", "--no-deps", "--no-recreate", "--scale", "decode=4", "decode"]
    assert calls[1][4:] == scale


async def test_what_it_says_of_a_failure_is_told(fake: Path) -> None:
    with pytest.raises(DriverError, match=r"exit code 1.*no such service: vision"):
        await compose(fake).write_count("vision", 2)
    with pytest.raises(DriverError, match="No such file"):
        await compose(fake.parent / "nowhere").read_count("decode")


async def test_a_call_that_hangs_is_given_up(fake: Path) -> None:
    with pytest.raises(DriverError, match=r"longer than 0\.5 s"):
        await compose(fake, timeout_s=0.5).write_count("recipe", 2)


async def test_a_call_that_is_given_up_ends_with_all_it_started(fake: Path) -> None:
    """`docker` runs Compose as a child of its own, which holds the pipes too."""
    call = asyncio.create_task(compose(fake).write_count("recipe", 2))
    child = fake.parent / "child"
    await until(lambda: child.exists() and child.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(call)
    await until(lambda: not _is_alive(int(child.read_text())))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_scales_publishes_no_port_and_has_no_fixed_name() -> None:
    """Two containers of one service could not both have it."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for service in ("prefill", "decode", "vision", "recipe"):
        assert not {"ports", "container_name"} & services[service].keys()


def real_command() -> list[str] | None:
    """What Compose is called by here; None where there is none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        asked = subprocess.run([*command, "version"], capture_output=True, timeout=30)
        if asked.returncode == 0:
            return command
    return None


def test_the_real_one_knows_every_option() -> None:
    command = real_command()
    if command is None:
        pytest.skip("Docker Compose is not installed")
    for subcommand, options in (
        ("ps", ["--quiet"]),
        ("up", ["--detach", "--no-deps", "--no-recreate", "--scale"]),
    ):
        shown = subprocess.run(
            [*command, subcommand, "--help"], capture_output=True, text=True, timeout=30
        )
        assert all(option in shown.stdout for option in options)


@pytest.mark.parametrize("overrides", [[], ["compose.gpu.yaml"]])
def test_the_real_one_reads_the_deployment(overrides: list[str]) -> None:
    command = real_command()
    if command is None:
        pytest.skip("Docker Compose is not installed")
    files = [f"--file={ROOT / name}" for name in ("compose.yaml", *overrides)]
    read = subprocess.run(
        [*command, *files, "--profile", "observability", "config", "--quiet"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert read.returncode == 0, read.stderr
