"""A whole fleet on this machine: NATS, Redis and every service, as processes we own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rorqual_runtime.identities.issue import issue

from rorqual_cli.address import BusAddress, fleet_secrets
from rorqual_cli.environment import check_environment, without_effect
from rorqual_cli.full_disk import start_anew_after_full_disk
from rorqual_cli.model import ensure_model
from rorqual_cli.options import STOP_ORDER, FleetOptions
from rorqual_cli.preflight import check_port, check_room
from rorqual_cli.problems import CliError
from rorqual_cli.processes import ManagedProcess, ProcessSpec, bound_log, start_fresh_log
from rorqual_cli.readiness import connect, wait_for_gateway, wait_for_port, wait_until_ready
from rorqual_cli.report import Reporter
from rorqual_cli.servers import free_port, nats_spec, redis_spec
from rorqual_cli.specs import Endpoints, service_specs
from rorqual_cli.state import FleetState, lock_home, own_record, record_of, remove_state
from rorqual_cli.supervisor import supervise

_SERVER_TIMEOUT_S = 20.0
_GATEWAY_TIMEOUT_S = 20.0
_MAX_LOG_BYTES = 64 << 20
_LOG_CHECK_S = 30.0
_STOP_SLACK_S = 8.0
"""Beyond its drain, for a process to close what it holds."""


class Fleet:
    """Start, watch and stop one fleet. `start` may be cancelled; call `stop` in any case."""

    def __init__(self, options: FleetOptions, report: Reporter) -> None:
        self._options = options
        self._report = report
        self.home = options.home.resolve()
        self.processes: dict[str, ManagedProcess] = {}
        """By instance id, servers included."""
        port, *more_ports = _gateway_ports(options)
        self.endpoints = Endpoints(options.host, port, free_port(), free_port(), more_ports)
        self.is_ready = False
        """Whether it answers requests."""
        self._is_declared = False
        self._lock: IO[str] | None = None
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def base_url(self) -> str:
        return self.endpoints.base_url

    def _grace_s(self, name: str) -> float:
        """Between SIGTERM and SIGKILL of an instance."""
        return self._options.drain_of(name) + _STOP_SLACK_S

    def bus_address(self, identity: str = "cli") -> BusAddress:
        """Of its NATS, for one of its identities."""
        return BusAddress(self.endpoints.nats_url, identity, fleet_secrets(self.home) / identity)

    async def start(self) -> None:
        """Return once the fleet answers requests. Raises: CliError."""
        check_environment({**os.environ, **self._options.env})
        for line in without_effect(os.environ):
            self._report.say(line)
        self._lock = lock_home(self.home)
        for number in range(1, self._options.count("gateway") + 1):
            check_port(self.endpoints.host, self.endpoints.gateway_port(number))
        check_room(self.home)
        self._write_state()
        started_s = time.monotonic()
        _issue_identities(self.home)
        model_dir = await ensure_model(self._options.model, self.home, self._report.say)
        await self._start_servers()
        specs = service_specs(self._options, self.home, model_dir, self.endpoints)
        for spec in specs:
            await self._start_process(spec)
        self._write_state()
        self._report.say(f"starting {len(specs)} services; logs: {self.home / 'logs'}")
        await self._wait_until_ready(started_s)
        self.is_ready = True
        self._watch()

    async def renew(self, name: str) -> None:
        """Have an instance drain and end, and start it again under its name.

        Raises: OSError when it can't be started.
        """
        process = self.processes[name]
        if not await process.stop(self._grace_s(name)):
            self._report.say(f"{name} had to be killed")  # whoever watches it starts it again
            return
        await process.start()
        if self._options.restart:
            self._watchers.append(asyncio.create_task(self._supervise(process)))
        self._write_state()

    def declare_ready(self) -> None:
        """Have the state file say that the fleet is ready, and all about it has been said."""
        self._is_declared = True
        self._write_state()

    async def stop(self) -> None:
        """Drain and end everything in order; bounded by the drain time of each group."""
        await self._end_watchers()
        for services in STOP_ORDER:
            group = [p for p in self.processes.values() if p.spec.service in services]
            running = [p for p in group if p.is_running]
            ended = await asyncio.gather(*(p.stop(self._grace_s(p.spec.name)) for p in running))
            for process, ended_itself in zip(running, ended, strict=True):
                if not ended_itself:
                    self._report.say(f"{process.spec.name} had to be killed")
        self._forget()

    def kill(self) -> None:
        """End everything at once, without drain. `stop` may still be running; it then returns."""
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)

    def _forget(self) -> None:
        if self._lock is not None:
            remove_state(self.home)
            self._lock.close()
            self._lock = None

    async def _start_servers(self) -> None:
        ports = {"nats": self.endpoints.nats_port, "redis": self.endpoints.redis_port}
        makers: dict[str, Callable[[Path, int], ProcessSpec]] = {
            "nats": nats_spec,
            "redis": redis_spec,
        }
        for name, make_spec in makers.items():
            await self._start_process(make_spec(self.home, ports[name]))
        self._write_state()
        for name, port in ports.items():
            await wait_for_port(self.processes[name], port, _SERVER_TIMEOUT_S)

    async def _start_process(self, spec: ProcessSpec) -> None:
        start_fresh_log(spec.log_path)
        process = ManagedProcess(spec)
        self.processes[spec.name] = process
        await process.start()

    async def _wait_until_ready(self, started_s: float) -> None:
        services = [p for p in self.processes.values() if p.spec.service not in ("nats", "redis")]
        nc = await connect(self.bus_address())
        try:
            await wait_until_ready(
                nc,
                services,
                self._report,
                started_s=started_s,
                timeout_s=self._options.ready_timeout_s,
            )
        finally:
            self._report.waiting("")
            await nc.close()
        gateways = [p for p in services if p.spec.service == "gateway"]
        for gateway, url in zip(gateways, self.endpoints.base_urls, strict=True):
            await wait_for_gateway(gateway, url, timeout_s=_GATEWAY_TIMEOUT_S)

    def _watch(self) -> None:
        self._watchers.append(asyncio.create_task(self._bound_logs()))
        if not self._options.restart:
            return
        for process in self.processes.values():
            self._watchers.append(asyncio.create_task(self._supervise(process)))
        watch = start_anew_after_full_disk(self.processes["nats"], self.home, self._report.say)
        self._watchers.append(asyncio.create_task(watch))

    def _supervise(self, process: ManagedProcess) -> Coroutine[Any, Any, None]:
        return supervise(process, self._report.say, self._write_state)

    async def _bound_logs(self) -> None:
        while True:
            await asyncio.sleep(_LOG_CHECK_S)
            for path in (self.home / "logs").glob("*.log"):
                try:
                    await asyncio.to_thread(bound_log, path, _MAX_LOG_BYTES)
                except OSError as error:  # a full disk: they are cut when there is room again
                    self._report.say(f"{path} can't be put aside: {error.strerror}")

    async def _end_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers.clear()

    def _stop_s(self) -> float:
        """Bound of the whole stop: the slowest of each group, and then some."""
        slowest = {p.spec.service: self._grace_s(name) for name, p in self.processes.items()}
        least_s = self._options.drain_s + _STOP_SLACK_S
        groups = (max(slowest.get(name, least_s) for name in group) for group in STOP_ORDER)
        return sum(groups) + _STOP_SLACK_S

    def _write_state(self) -> None:
        records = []
        for process in self.processes.values():
            if process.is_running and process.pid is not None:
                with suppress(ProcessLookupError):
                    records.append(record_of(process.spec.name, process.pid))
        FleetState(
            supervisor=own_record("supervisor"),
            base_url=self.base_url,
            nats_url=self.endpoints.nats_url,
            redis_url=self.endpoints.redis_url,
            is_ready=self._is_declared,
            stop_s=self._stop_s(),
            processes=records,
        ).write(self.home)


def _issue_identities(home: Path) -> None:
    """Raises: CliError when a file that is there is not what it should be."""
    try:
        issue(fleet_secrets(home))
    except (OSError, ValueError) as error:
        raise CliError(f"the keys of the fleet can't be made ({error})") from error


def _gateway_ports(options: FleetOptions) -> list[int]:
    numbers = range(options.count("gateway"))
    return [options.port + number if options.port else free_port() for number in numbers]
