"""Kubernetes as an orchestrator, by the scale subresource of each service's Deployment.

The only importer of its client, which only the driver `kubernetes` needs: `pip install
rorqual-scaler[kubernetes]`.
"""

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientError
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from rorqual_runtime.clock import Clock

from rorqual_scaler.counted_driver import Orchestrator
from rorqual_scaler.drivers import DriverError

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Of the pods of a Deployment that shrinks, those with the lowest go first."""
_COST_EPOCH_UNIX_S = 1_735_689_600
"""2025-01-01. Costs are seconds since then, negative: they have 32 bits."""
_MERGE = "application/merge-patch+json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterParams:
    """Where the Deployments are; each has the name of its service."""

    namespace: str
    timeout_s: float
    """Of one call."""


async def open_cluster(clock: Clock, params: ClusterParams) -> "Cluster":
    """By the pod's own account, else by the user's kubeconfig. Raises: DriverError."""
    configuration = client.Configuration()
    try:
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException:
            await load_kube_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise DriverError("configuration of the cluster", str(error)) from error
    return Cluster(client.ApiClient(configuration), clock, params)


class Cluster(Orchestrator):
    """Owns the client. Instance ids are names of pods."""

    name = "kubernetes"

    def __init__(self, api: client.ApiClient, clock: Clock, params: ClusterParams) -> None:
        self._api = api
        self._clock = clock
        self._apps = client.AppsV1Api(api)
        self._core = client.CoreV1Api(api)
        self._params = params

    async def read_count(self, service: str) -> int:
        scale = await self._call(
            f"scale of {service}",
            self._apps.read_namespaced_deployment_scale(service, self._params.namespace),
        )
        return int(scale.spec.replicas or 0)  # the API leaves a zero out

    async def write_count(self, service: str, num: int) -> None:
        call = self._apps.patch_namespaced_deployment_scale(
            service,
            self._params.namespace,
            {"spec": {"replicas": num}},
            _content_type=_MERGE,
        )
        await self._call(f"scale of {service}", call)

    async def prefer_to_stop(self, service: str, instance_ids: Sequence[str]) -> Collection[str]:
        """A pod that is gone already is no failure. The latest choice has the lowest cost: marks
        of earlier ones may still be there."""
        cost = _COST_EPOCH_UNIX_S - int(self._clock.now_unix_s())
        body = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
        marked = []
        for name in instance_ids:
            call = self._core.patch_namespaced_pod(
                name, self._params.namespace, body, _content_type=_MERGE
            )
            if await self._call(f"pod {name}", call, may_be_gone=True) is not None:
                marked.append(name)
        return marked

    async def close(self) -> None:
        await self._api.close()

    async def _call(self, what: str, call: Awaitable[Any], *, may_be_gone: bool = False) -> Any:
        try:
            return await asyncio.wait_for(call, self._params.timeout_s)
        except TimeoutError:
            raise DriverError(what, f"no answer in {self._params.timeout_s:g} s") from None
        except ApiException as error:
            if may_be_gone and error.status == 404:
                return None
            raise DriverError(what, f"{error.status} {error.reason}") from error
        except ClientError as error:
            raise DriverError(what, str(error) or type(error).__name__) from error
