"""`rorqual up` and friends as a person uses them: ready, ask, trace, crash, stop, nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rorqual_cli.identity import ProcessIdentity
from rorqual_cli.problems import ExitCode
from rorqual_cli.state import FleetState, read_state

from tests.support.fleet import ROOT, FleetFactory
from tests.support.waiting import WAIT_S, until_blocking

MODEL_DIR = ROOT / ".rorqual" / "models" / "smollm2-135m-instruct"
SERVICES = {
    *("gateway", "recipe", "router", "prefill", "decode"),
    *("vision", "kvmeta", "grammar", "scaler"),
}


def rorqual(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rorqual_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def up_arguments(home: Path) -> list[str]:
    return ["--home", str(home), "--model", str(MODEL_DIR), "--port", "0"]


def start_up(home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rorqual_cli", "up", *up_arguments(home)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a detached fleet in it, as `make serve DETACH=1` leaves one."""
    home = tmp_path_factory.mktemp("home")
    up = rorqual("up", *up_arguments(home), "--drain", "60", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "ready after" in up.stdout
    assert "curl" in up.stdout
    yield home
    rorqual("down", "--home", str(home))


def state_of(home: Path) -> FleetState:
    state = read_state(home)
    assert state is not None
    return state


def test_every_service_is_a_process_that_discovery_shows(home: Path) -> None:
    rows: list[list[str]] = []

    def has_all() -> bool:  # one that is busy may miss a round
        ps = rorqual("ps", "--home", str(home))
        assert ps.returncode == 0
        rows[:] = [line.split() for line in ps.stdout.splitlines()[1:]]
        return {row[0] for row in rows} == SERVICES

    until_blocking(has_all, "all services")
    assert {row[4] for row in rows} == {"ready"}
    assert len({row[5] for row in rows}) == len(SERVICES), "one process each"


def test_one_shot_chat_streams_an_answer_and_leaves_one_trace(home: Path) -> None:
    chat = rorqual("chat", "--home", str(home), "--max-tokens", "8", "--temperature", "0", "Hi")
    assert chat.returncode == 0, chat.stderr
    assert chat.stdout.strip()
    deadline_s = time.monotonic() + WAIT_S
    expected = [f"[{name}]" for name in ("gateway", "recipe", "router", "prefill", "decode")]
    while True:  # each process writes its spans about once a second
        trace = rorqual("trace", "--home", str(home))
        if trace.returncode == 0 and all(name in trace.stdout for name in expected):
            break
        assert time.monotonic() < deadline_s, trace.stdout + trace.stderr
    request_id = re.findall(r"request (\w+)", trace.stdout)[0]
    trace_id = re.findall(r"trace (\w{32})", trace.stdout)[0]
    for wanted in (request_id, trace_id):
        assert rorqual("trace", "--home", str(home), wanted).stdout == trace.stdout


@pytest.mark.parametrize(("service", "code"), [("kvmeta", 0), ("nonsense", 1)])
def test_the_probe_of_the_images_knows_who_is_ready(home: Path, service: str, code: int) -> None:
    probe = [sys.executable, "-IS", str(ROOT / "deploy" / "healthcheck.py")]
    table = rorqual("ps", "--home", str(home)).stdout
    (port,) = re.findall(r"^kvmeta .*http://127\.0\.0\.1:(\d+)/metrics", table, re.MULTILINE)
    env = {"RORQUAL_METRICS_PORT": port}
    run = subprocess.run([*probe, service], check=False, timeout=60, env=env)
    assert run.returncode == code


def test_a_second_fleet_in_the_same_home_or_on_the_same_port_is_refused(
    home: Path, tmp_path: Path
) -> None:
    again = rorqual("up", "--home", str(home), "--port", "0")
    assert again.returncode == ExitCode.ALREADY_RUNNING
    assert "already" in again.stderr
    port = state_of(home).base_url.rpartition(":")[2]
    elsewhere = rorqual("up", "--home", str(tmp_path), "--port", port)
    assert elsewhere.returncode == ExitCode.PORT_BUSY
    assert port in elsewhere.stderr
    assert elsewhere.stderr.count("\n") == 1
    detached = rorqual("up", "--home", str(tmp_path), "--port", port, "--detach")
    assert (detached.returncode, detached.stderr) == (elsewhere.returncode, elsewhere.stderr)


def test_a_crashed_service_comes_back(home: Path) -> None:
    before = {record.name: record.pid for record in state_of(home).processes}
    os.kill(before["vision-1"], signal.SIGKILL)
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        now = {record.name: record.pid for record in state_of(home).processes}
        if now.get("vision-1", before["vision-1"]) != before["vision-1"]:
            break
        time.sleep(0.1)
    assert now["vision-1"] != before["vision-1"]
    assert "crashed" in (home / "logs" / "fleet.log").read_text()


def test_down_drains_what_is_under_way_and_leaves_nothing(home: Path) -> None:
    state = state_of(home)
    body = {"model": "any", "max_tokens": 40, "stream": True, "seed": 1}
    body["messages"] = [{"role": "user", "content": "Count to twenty."}]
    with httpx.Client(base_url=state.base_url, trust_env=False, timeout=60) as client:
        body["model"] = client.get("/v1/models").json()["data"][0]["id"]
        with client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(line for line in lines if "content" in line)
            down = subprocess.Popen(
                [sys.executable, "-m", "rorqual_cli", "down", "--home", str(home)]
            )
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"]
    assert down.wait(60) == 0
    assert not [r.name for r in state.processes if r.identity.is_alive]
    assert not state.supervisor.identity.is_alive
    assert read_state(home) is None
    assert rorqual("ps", "--home", str(home)).returncode == ExitCode.NOT_RUNNING


def test_ctrl_c_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    up = start_up(tmp_path)
    deadline_s = time.monotonic() + WAIT_S
    while not ((state := read_state(tmp_path)) and len(state.processes) > len(SERVICES)):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    up.send_signal(signal.SIGINT)
    assert up.wait(30) == 128 + signal.SIGINT
    assert not [r.name for r in state.processes if r.identity.is_alive]


def test_killing_the_launcher_ends_its_fleet(tmp_path: Path) -> None:
    up = start_up(tmp_path)
    deadline_s = time.monotonic() + 60
    while not ((state := read_state(tmp_path)) and state.is_ready):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    up.kill()
    up.wait(30)
    for record in state.processes:
        assert ProcessIdentity(record.pid, record.start_ticks).wait(30), record.name
    left_over = rorqual("down", "--home", str(tmp_path))
    assert left_over.returncode == 0


def test_the_fixture_starts_several_of_a_kind_and_kills_one(fleet: FleetFactory) -> None:
    running = fleet(prefill=2)
    assert {"prefill-1", "prefill-2", "nats", "redis", "gateway-1"} <= running.pids.keys()
    assert running.kill("prefill") == "prefill-1"
    assert "prefill-1" not in running.pids
    answer = httpx.get(f"{running.base_url}/v1/models", trust_env=False)
    assert answer.status_code == 200
    running.restart("prefill-1")
    running.wait_ready("prefill-1")
    assert running.loads()["prefill-1"].num_active_requests == 0
