"""When a fleet can answer: every instance says ready, and the gateway says so over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import httpx
import nats.errors
from nats.aio.client import Client
from rorqual_runtime.connection import sign_in
from rorqual_runtime.discovery import Instance, discover
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.identities.bus_rights import inbox_prefix

from rorqual_cli.address import BusAddress
from rorqual_cli.problems import CliError
from rorqual_cli.processes import ManagedProcess
from rorqual_cli.report import Reporter

_POLL_S = 0.1
_CONNECT_TIMEOUT_S = 10.0


async def wait_for_port(process: ManagedProcess, port: int, timeout_s: float) -> None:
    """Raises: CliError when the process ends or does not listen in time."""

    async def listening() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    end_s = time.monotonic() + timeout_s
    while not await listening():
        _raise_if_ended([process])
        if time.monotonic() > end_s:
            raise _not_ready([process], timeout_s)
        await asyncio.sleep(0.02)


async def connect(address: BusAddress) -> Client:
    """A client for discovery; a few tries, nothing on stderr. Raises: CliError."""
    client = Client()

    async def stay_quiet(_error: Exception) -> None:
        return

    try:
        await client.connect(
            address.url,
            inbox_prefix=inbox_prefix(address.identity),
            **sign_in(client, [address.url], address.secrets_dir),
            connect_timeout=int(_CONNECT_TIMEOUT_S),
            max_reconnect_attempts=1,
            reconnect_time_wait=0.1,  # type: ignore[arg-type]
            error_cb=stay_quiet,
        )
    except (OSError, TimeoutError, nats.errors.Error, Unsupported) as error:
        raise CliError(f"NATS at {address.shown} can't be reached ({error})") from error
    return client


async def wait_until_ready(
    nc: Client,
    processes: Iterable[ManagedProcess],
    report: Reporter,
    *,
    started_s: float,
    timeout_s: float,
) -> None:
    """Return once every process says ready; each is reported with the time it took.

    Raises: CliError when one ends or the time is up.
    """
    missing = {process.spec.name: process for process in processes}
    while missing:
        for instance in await _discovered(nc, missing.values()):
            if instance.ready and instance.id in missing:
                elapsed_s = time.monotonic() - started_s
                report.say(f"  {instance.id:<12} ready after {elapsed_s:5.1f} s")
                del missing[instance.id]
        _raise_if_ended(missing.values())
        elapsed_s = time.monotonic() - started_s
        if missing and elapsed_s > timeout_s:
            raise _not_ready(missing.values(), timeout_s)
        report.waiting(_waiting_text(sorted(missing), elapsed_s))


async def _discovered(nc: Client, awaited: Iterable[ManagedProcess]) -> list[Instance]:
    try:
        return await discover(nc, timeout_s=_POLL_S)
    except nats.errors.Error as error:
        raise CliError(f"NATS is gone ({error})", _see_logs(awaited)) from error


async def wait_for_gateway(process: ManagedProcess, base_url: str, *, timeout_s: float) -> None:
    """Return once GET /ready of the gateway answers 200.

    Raises: CliError with the gateway's own reason when the time is up.
    """
    end_s = time.monotonic() + timeout_s
    reason = "no answer"
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        while time.monotonic() < end_s:
            try:
                answer = await client.get(f"{base_url}/ready")
                if answer.status_code == 200:
                    return
                reason = answer.text[:200]
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
            await asyncio.sleep(_POLL_S)
    raise CliError(f"the gateway did not become ready: {reason}", _see_logs([process]))


def _waiting_text(missing: list[str], elapsed_s: float) -> str:
    return f"{elapsed_s:.0f} s, waiting for {', '.join(missing)}" if missing else ""


def _raise_if_ended(processes: Iterable[ManagedProcess]) -> None:
    for process in processes:
        if not process.is_running:
            raise CliError(
                f"{process.spec.name} ended while starting (exit code {process.exit_code}): "
                f"{process.log_tail()}",
                f"see {process.spec.log_path}",
            )


def _not_ready(processes: Iterable[ManagedProcess], timeout_s: float) -> CliError:
    names = ", ".join(sorted(process.spec.name for process in processes))
    return CliError(f"{names} not ready after {timeout_s:.0f} s", _see_logs(processes))


def _see_logs(processes: Iterable[ManagedProcess]) -> str:
    directories = sorted({str(process.spec.log_path.parent) for process in processes})
    return f"see the logs in {', '.join(directories)}"
