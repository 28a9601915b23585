"""`rorqual up`: run a fleet in the foreground, or leave one behind."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from rorqual_cli.fleet import Fleet
from rorqual_cli.options import DEFAULT_HOME, FleetOptions
from rorqual_cli.preflight import check_room
from rorqual_cli.processes import start_fresh_log
from rorqual_cli.report import Reporter
from rorqual_cli.state import lock_home, read_state

_RELAY_POLL_S = 0.1
_CANCEL_AGAIN_S = 0.5


def run_foreground(options: FleetOptions, report: Reporter) -> int:
    """Start, serve until Ctrl-C or SIGTERM, drain, stop. A second Ctrl-C ends it at once."""
    return asyncio.run(_run(Fleet(options, report), report))


async def _run(fleet: Fleet, report: Reporter) -> int:
    started_s = time.monotonic()
    stop = asyncio.Event()
    _on_signals(lambda: _stop_or_kill(stop, fleet, report))
    starting = asyncio.create_task(fleet.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await _say_ready(fleet, report, time.monotonic() - started_s)
            fleet.declare_ready()
            await stopping
            return 0
        report.say("stopped before the fleet was ready")
        return 128 + signal.SIGINT
    finally:
        await _end(starting)
        stopping.cancel()
        if fleet.is_ready:
            report.say("stopping: requests under way may finish (Ctrl-C again to end at once)")
        await fleet.stop()
        if fleet.is_ready:
            report.say("stopped")


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel it until it has ended: on Python 3.11, `asyncio.wait_for` inside it may lose a
    cancellation that comes together with what it waited for."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(task, return_exceptions=True)


def _on_signals(handler: object) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, handler)  # type: ignore[arg-type]


def _stop_or_kill(stop: asyncio.Event, fleet: Fleet, report: Reporter) -> None:
    if stop.is_set():
        report.say("ending at once")
        fleet.kill()
    stop.set()


async def _say_ready(fleet: Fleet, report: Reporter, elapsed_s: float) -> None:
    api_key = _first_api_key()
    model = await _served_model(fleet.base_url, api_key)
    body = (
        f'{{"model":"{model}","stream":true,'
        '"messages":[{"role":"user","content":"What is a whale?"}]}'
    )
    needs_key = "; it wants one of its API keys" if api_key else ""
    report.say(f"ready after {elapsed_s:.1f} s: {fleet.base_url} serves {model}{needs_key}")
    key_header = "-H 'Authorization: Bearer KEY' " if api_key else ""
    report.say(
        f"try:   curl -N {fleet.base_url}/v1/chat/completions {key_header}"
        f"-H 'Content-Type: application/json' -d '{body}'"
    )
    key_option = " --api-key KEY" if api_key else ""
    report.say(f"or:    .venv/bin/rorqual chat{_home_option(fleet.home)}{key_option}")
    report.say(f"logs:  {fleet.home / 'logs'}")
    report.say(f"stop:  Ctrl-C, or .venv/bin/rorqual down{_home_option(fleet.home)}")


def _first_api_key() -> str:
    """Of those that the gateway was given; "" without any. It is never shown."""
    return os.environ.get("RORQUAL_GATEWAY_API_KEYS", "").split(",")[0].rpartition(":")[2].strip()


def _home_option(home: Path) -> str:
    """What other commands must be told to find this fleet."""
    is_default = home == Path(DEFAULT_HOME).resolve()
    return "" if is_default else f" --home {shlex.quote(str(home))}"


async def _served_model(base_url: str, api_key: str) -> str:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with suppress(httpx.HTTPError, ValueError, LookupError):
        async with httpx.AsyncClient(trust_env=False, timeout=5.0, headers=headers) as client:
            answer = await client.get(f"{base_url}/v1/models")
            return str(answer.json()["data"][0]["id"])
    return "default"


def run_detached(arguments: Sequence[str], home: Path, report: Reporter) -> int:
    """Start `rorqual up ARGUMENTS` in the background, relay its lines until it is ready.

    Returns its exit code when it ends before that.
    """
    lock_home(home).close()  # before the log of a fleet that runs here is put aside
    check_room(home)  # a full disk takes no log to relay
    log_path = home / "logs" / "fleet.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    start_fresh_log(log_path)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "rorqual_cli", "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return _relay(process, home, log_path, report)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _relay(process: subprocess.Popen[bytes], home: Path, log_path: Path, report: Reporter) -> int:
    rest = ""
    with log_path.open(encoding="utf-8", errors="replace") as log:
        while True:
            ended = process.poll() is not None
            ready = _is_ready(home, process.pid)
            text, _, rest = (rest + log.read()).rpartition("\n")
            _say_lines(text, report)
            if ended:
                _say_lines(rest, report)
                return int(process.returncode)
            if ready:
                return 0
            time.sleep(_RELAY_POLL_S)


def _say_lines(text: str, report: Reporter) -> None:
    """Relay what the launcher wrote, its error line as an error."""
    for line in text.splitlines():
        if line.startswith("rorqual: "):
            sys.stderr.write(f"{line}\n")
        else:
            report.say(line)


def _is_ready(home: Path, pid: int) -> bool:
    state = read_state(home)
    return state is not None and state.is_ready and state.supervisor.pid == pid
