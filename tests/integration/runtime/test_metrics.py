"""A service's metrics over HTTP, found through discovery."""

from __future__ import annotations

import asyncio
import urllib.request

import nats
import pytest
from prometheus_client import Counter
from rorqual_proto.v1.load_pb2 import LoadReport
from rorqual_runtime.clock import WallClock
from rorqual_runtime.discovery import discover
from rorqual_runtime.errors import Unsupported
from rorqual_runtime.service import REPORT_IS_OLD_S, open_service
from rorqual_runtime.settings import RuntimeSettings

from tests.support.waiting import WAIT_S, until


def read(url: str) -> str:
    """As Prometheus asks."""
    formats = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=formats), timeout=WAIT_S
    ) as answer:
        return answer.read().decode()


async def test_any_service_shows_its_last_report_where_discovery_says(
    runtime_settings: RuntimeSettings,
) -> None:
    settings = runtime_settings.model_copy(update={"metrics_port": 0})

    def fill(report: LoadReport) -> None:
        report.router.queued_jobs = 7

    async with open_service("router", settings) as ctx:
        Counter("vllm:colons", "as engines write them", registry=ctx.metrics.registry).inc()
        ctx.report_load(fill)
        ctx.mark_ready()
        await until(lambda: ctx.metrics.last_report.router.queued_jobs == 7)
        nc = await nats.connect(settings.nats_url)
        (instance,) = await discover(nc, WAIT_S / 10)
        await nc.close()
        text = await asyncio.to_thread(read, instance.metadata["metrics"])
        assert "rorqual_router_queued_jobs 7.0" in text
        assert "vllm:colons_total 1.0" in text
        assert f'instance_id="{ctx.instance_id}"' in text
        port = int(instance.metadata["metrics"].rsplit(":", 1)[1].split("/")[0])
        taken = settings.model_copy(update={"metrics_port": port, "instance_id": None})
        with pytest.raises(Unsupported, match=f"RORQUAL_METRICS_PORT.*{port}"):
            async with open_service("router", taken):
                pass
    with pytest.raises(OSError):
        await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")


class MovedClock(WallClock):
    """Some seconds later than it is."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


async def test_an_instance_whose_event_loop_is_stuck_is_not_ready(
    runtime_settings: RuntimeSettings,
) -> None:
    async with open_service("router", runtime_settings) as ctx:
        ctx.clock = clock = MovedClock()
        assert not ctx.metrics.is_ready()
        ctx.mark_ready()
        await until(lambda: ctx.metrics.last_report.seq > 0)
        assert ctx.metrics.is_ready()
        clock.ahead_s += REPORT_IS_OLD_S + 1  # and the loop does nothing meanwhile
        assert not ctx.metrics.is_ready()
        await until(ctx.metrics.is_ready)
