"""Kubernetes as an orchestrator, by the scale subresource of each service's Deployment.

The only importer of its client, which only the driver `kubernetes` needs: `pip install
rorqual-scaler[kubernetes]`.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import ClientError
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from rorqual_scaler.counted_driver import Orchestrator
from rorqual_scaler.drivers import DriverError

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Of the pods of a Deployment that shrinks, those with the lowest go first."""
_FIRST = "-1000"
_MERGE = "application/merge-patch+json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterParams:
    """Where the Deployments are; each has the name of its service."""

    namespace: str
    timeout_s: float
    """Of one call."""


async def open_cluster(params: ClusterParams) -> "Cluster":
    """By the pod's own account, else by the user's kubeconfig. Raises: DriverError."""
    configuration = client.Configuration()
    try:
        try:
            load_incluster_config(client_configuration=configuration)
        except ConfigException:
            await load_kube_config(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise DriverError("configuration of the cluster", str(error)) from error
    return Cluster(client.ApiClient(configuration), params)


class Cluster(Orchestrator):
    """Owns the client. Instance ids are names of pods."""

    name = "kubernetes"

    def __init__(self, api: client.ApiClient, params: ClusterParams) -> None:
        self._api = api
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

    async def prefer_to_stop(self, service: str, instance_ids: Sequence[str]) -> None:
        """A pod that is gone already is no failure."""
        body = {"metadata": {"annotations": {DELETION_COST: _FIRST}}}
        for name in instance_ids:
            call = self._core.patch_namespaced_pod(
                name, self._params.namespace, body, _content_type=_MERGE
            )
            await self._call(f"pod {name}", call, may_be_gone=True)

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
