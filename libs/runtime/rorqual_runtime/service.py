"""The life of one service process: open, serve, report, drain, close."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict
from opentelemetry.trace import Tracer
from rorqual_proto.v1 import load_pb2
from rorqual_proto.v1.scaler_pb2 import ShutdownRequest

from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus, MessageContext
from rorqual_runtime.clock import Clock, WallClock
from rorqual_runtime.context import forget_deadline
from rorqual_runtime.decision_log import configure_decision_log
from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import configure_logging, get_logger
from rorqual_runtime.metrics import ServiceMetrics, served
from rorqual_runtime.process import bound_closing, cancelled_by_signals, handle_signals, run
from rorqual_runtime.settings import RuntimeSettings
from rorqual_runtime.telemetry import Telemetry, open_telemetry
from rorqual_runtime.tensors import TensorPlane

CLOSE_GRACE_S = 3.0
SHUTDOWN_ENDPOINT = "shutdown"
REPORT_IS_OLD_S = 15.0
"""Without a load report for so long, the event loop is stuck."""

__all__ = ["ServiceContext", "open_service", "run", "run_until_signal"]

log = get_logger(__name__)

FillReport = Callable[[load_pb2.LoadReport], None]


class ServiceContext:
    """What every service is given: identity, bus, tensor plane, tracer, metrics, clock,
    supervision."""

    def __init__(
        self,
        name: str,
        settings: RuntimeSettings,
        *,
        instance_id: str,
        incarnation: int,
        bus: Bus,
        tensors: TensorPlane,
        telemetry: Telemetry,
        metrics: ServiceMetrics,
        clock: Clock,
    ) -> None:
        self.name = name
        self.settings = settings
        self.instance_id = instance_id
        self.incarnation = incarnation
        self.bus = bus
        self.tensors = tensors
        self.tracer: Tracer = telemetry.tracer
        self.metrics = metrics
        self.clock = clock
        self.is_ready = False
        self.is_draining = False
        self.failure: BaseException | None = None
        """What a tracked task died of."""
        self.stop_requested = asyncio.Event()
        self.drain_s = settings.drain_s
        """How long a drain may take."""
        self._fill: FillReport | None = None
        self._seq = 0
        self._reported_s = -math.inf
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def takes_work(self) -> bool:
        """Ready, connected, and not stuck: it has made a load report lately. From any thread."""
        patience_s = max(REPORT_IS_OLD_S, 3 * self.settings.load_report_interval_s)
        is_stuck = self.clock.monotonic_s() - self._reported_s > patience_s
        return self.is_ready and self.bus.is_connected and not is_stuck

    def report_load(self, fill: FillReport) -> None:
        """Call `fill` on each load report before it goes out, a few times a second."""
        self._fill = fill

    def mark_ready(self) -> None:
        """Say in discovery that this instance takes work, and start load reports."""
        if self.is_ready:
            return
        self.is_ready = True
        self._reported_s = self.clock.monotonic_s()
        self.bus.set_metadata("ready", "true")
        self.track(self._publish_loads())
        log.info("ready", extra={"pid": os.getpid()})

    def track(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run in the background. An exception it does not handle is logged and stops the service
        with exit code 1. It inherits trace and request id, not the deadline of the request."""
        context = contextvars.copy_context()
        context.run(forget_deadline)
        task = asyncio.get_running_loop().create_task(coro, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def request_stop(self, reason: str) -> None:
        """Start the drain, as SIGTERM would."""
        if not self.stop_requested.is_set():
            log.info("stopping", extra={"reason": reason})
            self.stop_requested.set()

    def load_report(self) -> load_pb2.LoadReport:
        """What this instance would say about itself now."""
        report = load_pb2.LoadReport(
            service=self.name,
            instance_id=self.instance_id,
            incarnation=self.incarnation,
            seq=self._seq,
            sent_unix_s=self.clock.now_unix_s(),
            draining=self.is_draining,
            num_held_leases=self.tensors.num_held,
        )
        if self._fill is not None:
            self._fill(report)
        return report

    async def publish_load(self) -> None:
        """Send one load report now; while the bus is away it is skipped."""
        self._seq += 1
        report = self.load_report()
        self.metrics.last_report = report
        self._reported_s = self.clock.monotonic_s()
        if not self.bus.is_connected:
            return
        with contextlib.suppress(ServingError):
            await self.bus.publish(subjects.load(self.name, self.instance_id), report)

    async def cancel_tasks(self) -> None:
        """End all tracked tasks; bounded."""
        tasks = {t for t in self._tasks if t is not asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_GRACE_S)

    async def _publish_loads(self) -> None:
        while True:
            await self.publish_load()
            await asyncio.sleep(self.settings.load_report_interval_s)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a background task failed", exc_info=error)
        self.failure = self.failure or error
        self.request_stop("a background task failed")


@asynccontextmanager
async def open_service(
    name: str, settings: RuntimeSettings, *, version: str = "0.1.0"
) -> AsyncIterator[ServiceContext]:
    """Logs, traces, bus, tensor plane and registration of one service, closed in reverse order.

    SIGTERM and SIGINT before `run_until_signal` cancel the start.
    Raises: Unavailable when no broker answers in time.
    """
    instance_id = settings.instance_id or f"{name}-{secrets.token_hex(4)}"
    incarnation = time.time_ns() // 1_000_000
    configure_logging(settings.log_level, service=name, instance_id=instance_id)
    configure_decision_log(settings.decision_log)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(cancelled_by_signals())
        telemetry = open_telemetry(settings, name, instance_id=instance_id, version=version)
        stack.push_async_callback(asyncio.to_thread, telemetry.close)
        metrics = ServiceMetrics(name, instance_id, version)
        metadata = _metadata(settings, incarnation)
        if settings.metrics_port is not None:
            port = stack.enter_context(
                served(metrics, settings.metrics_host, settings.metrics_port)
            )
            metadata["metrics"] = f"http://{settings.advertise_host}:{port}/metrics"
        bus = await Bus.connect(
            settings,
            name,
            instance_id=instance_id,
            version=version,
            metadata=metadata,
            tracer=telemetry.tracer,
        )
        stack.push_async_callback(bus.close)
        tensors = await TensorPlane.open(
            settings,
            instance_id,
            incarnation,
            settings.host_id or instance_id,
            tracer=telemetry.tracer,
        )
        stack.push_async_callback(tensors.close)
        ctx = ServiceContext(
            name,
            settings,
            instance_id=instance_id,
            incarnation=incarnation,
            bus=bus,
            tensors=tensors,
            telemetry=telemetry,
            metrics=metrics,
            clock=WallClock(),
        )
        metrics.is_ready = lambda: ctx.takes_work
        stack.push_async_callback(ctx.cancel_tasks)
        await _register(ctx)
        yield ctx


def _metadata(settings: RuntimeSettings, incarnation: int) -> dict[str, str]:
    return {
        "ready": "false",
        "draining": "false",
        "incarnation": str(incarnation),
        "started_unix_s": f"{incarnation / 1000:.3f}",
        "host": socket.gethostname(),
        "host_id": settings.host_id or "",
        "address": settings.advertise_host,
        "pid": str(os.getpid()),
    }


async def _register(ctx: ServiceContext) -> None:
    ctx.bus.load = lambda: MessageToDict(ctx.load_report(), preserving_proto_field_name=True)

    async def on_shutdown(request: ShutdownRequest, _context: MessageContext) -> Empty:
        if request.drain_s > 0:
            ctx.drain_s = request.drain_s
        ctx.request_stop("shutdown message")
        return Empty()

    await ctx.bus.serve(
        subjects.shutdown(ctx.name, ctx.instance_id),
        ShutdownRequest,
        Empty,
        on_shutdown,
        name=SHUTDOWN_ENDPOINT,
    )


async def run_until_signal(
    ctx: ServiceContext, drain: Callable[[float], Awaitable[None]] | None = None
) -> None:
    """Serve until SIGTERM, SIGINT, a shutdown message or the failure of a tracked task; then drain.

    drain: called with the seconds it has (RORQUAL_DRAIN_S, or what the shutdown message gives it)
    and cancelled after them; it returns once nothing is under way any more. A second signal ends
    the process at once.
    What a start has made stays to the end, so no collection visits it from here on. That keeps them
    short, and lets what requests leave behind be found while it is little: how much there may be of
    it goes by all that is visited.
    Raises: SystemExit(1) after the failure of a tracked task.
    """
    gc.collect()
    gc.freeze()
    with handle_signals(lambda number: _on_signal(ctx, number)):
        await ctx.stop_requested.wait()
        await _drain(ctx, drain)
    bound_closing()
    if ctx.failure is not None:
        raise SystemExit(1)


async def _drain(ctx: ServiceContext, drain: Callable[[float], Awaitable[None]] | None) -> None:
    ctx.is_draining = True
    ctx.bus.set_metadata("draining", "true")
    await ctx.publish_load()
    await ctx.bus.stop_shared()
    if drain is not None:
        try:
            async with asyncio.timeout(ctx.drain_s):
                await drain(ctx.drain_s)
        except TimeoutError:
            log.warning("drain took too long", extra={"drain_s": ctx.drain_s})
        except Exception:
            log.exception("drain failed")
    await ctx.publish_load()  # the last word: what was counted until now
    log.info("drained")


def _on_signal(ctx: ServiceContext, number: signal.Signals) -> None:
    if ctx.stop_requested.is_set():
        log.warning("second signal, leaving at once")
        os._exit(128 + number)
    ctx.request_stop(number.name)
