"""Kubernetes is driven through its own client, against a server that speaks the same HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from rorqual_policy import Target
from rorqual_runtime.clock import ManualClock, WallClock
from rorqual_scaler.cluster import DELETION_COST, Cluster, ClusterParams, open_cluster
from rorqual_scaler.counted_driver import CountedDriver, CountedDriverParams
from rorqual_scaler.drivers import DriverError

from tests.support.waiting import until

SCALE = "/apis/apps/v1/namespaces/rorqual/deployments/{name}/scale"
POD = "/api/v1/namespaces/rorqual/pods/{name}"
TOKEN = "secret-of-the-scaler"


@dataclass
class ApiServer:
    """Deployments with their scale subresource, and pods, of one namespace."""

    replicas: dict[str, int] = field(default_factory=lambda: {"decode": 2, "prefill": 0})
    annotations: dict[str, dict[str, str]] = field(default_factory=lambda: {"decode-abc": {}})
    content_types: set[str] = field(default_factory=set)
    is_failing: bool = False
    url: str = ""

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        return _status(503, "etcd is away") if self.is_failing else await handler(request)

    async def read_scale(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.replicas:
            return _status(404, f'deployments.apps "{name}" not found')
        return web.json_response(self._scale(name))

    async def patch_scale(self, request: web.Request) -> web.Response:
        self.content_types.add(request.content_type)
        name = request.match_info["name"]
        self.replicas[name] = (await request.json())["spec"]["replicas"]
        return web.json_response(self._scale(name))

    async def patch_pod(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.annotations:
            return _status(404, f'pods "{name}" not found')
        self.annotations[name] |= (await request.json())["metadata"]["annotations"]
        meta = {"name": name, "namespace": "rorqual", "annotations": self.annotations[name]}
        return web.json_response({"kind": "Pod", "apiVersion": "v1", "metadata": meta})

    def _scale(self, name: str) -> dict[str, Any]:
        """As the API writes it: a count of zero is left out."""
        num = self.replicas[name]
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": name, "namespace": "rorqual"},
            "spec": {"replicas": num} if num else {},
            "status": {"replicas": num, "selector": f"app.kubernetes.io/name={name}"},
        }


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    return web.json_response({**body, "code": code}, status=code)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application(middlewares=[server.guard])
    app.router.add_get(SCALE, server.read_scale)
    app.router.add_patch(SCALE, server.patch_scale)
    app.router.add_patch(POD, server.patch_pod)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture
async def cluster(
    api: ApiServer, clock: ManualClock, tmp_path, monkeypatch
) -> AsyncIterator[Cluster]:
    """As the scaler opens it, by a kubeconfig."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": api.url}}],
        "users": [{"name": "scaler", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "scaler"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    opened = await open_cluster(clock, ClusterParams("rorqual", timeout_s=20.0))
    yield opened
    await opened.close()


async def test_the_scale_of_a_deployment_is_read_and_patched(api, cluster) -> None:
    assert await cluster.read_count("decode") == 2
    assert await cluster.read_count("prefill") == 0
    await cluster.write_count("decode", 5)
    assert api.replicas["decode"] == await cluster.read_count("decode") == 5
    assert api.content_types == {"application/merge-patch+json"}


async def test_the_latest_choice_goes_first(api, clock, cluster) -> None:
    api.annotations["decode-def"] = {}
    named = await cluster.prefer_to_stop("decode", ["decode-abc", "decode-gone"])
    assert named == ["decode-abc"]
    first = int(api.annotations["decode-abc"][DELETION_COST])
    await clock.advance(1.0)
    await cluster.prefer_to_stop("decode", ["decode-def"])
    assert -(2**31) < int(api.annotations["decode-def"][DELETION_COST]) < first < 0


async def test_refusals_say_what_was_asked_for(api, cluster) -> None:
    with pytest.raises(DriverError, match="scale of vision: 404"):
        await cluster.read_count("vision")
    api.is_failing = True
    with pytest.raises(DriverError, match="503"):
        await cluster.write_count("decode", 3)


async def test_a_decision_becomes_replicas(api, cluster) -> None:
    tasks = []

    def track(coro):
        tasks.append(asyncio.create_task(coro))
        return tasks[-1]

    params = CountedDriverParams(("decode",), 60.0, 60.0, 60.0, 1.0)
    driver = CountedDriver(cluster, WallClock(), params, track)
    await driver.start()
    await driver.grow("decode", Target(2, 0, 4, +2, "load"))
    await until(lambda: api.replicas["decode"] == 4)
    await until(lambda: len(driver.own("decode", ["decode-abc", "decode-def"]).pending) == 2)
    await driver.shrink("decode", Target(4, 0, 3, -1, "quiet"), ["decode-abc"])
    await until(lambda: api.replicas["decode"] == 3)
    assert DELETION_COST in api.annotations["decode-abc"]
    for task in tasks:
        task.cancel()
