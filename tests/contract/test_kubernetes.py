"""The Kubernetes manifests: what the script writes, true to the settings, and valid."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from rorqual_cli.servers import free_port, nats_binary
from rorqual_runtime.identities.issue import issue
from rorqual_runtime.settings import RuntimeSettings, variables_of
from rorqual_scaler.settings import SERVICES as SCALED
from rorqual_scaler.settings import ScalerSettings

from scripts.kubernetes import CLOSE_S, NAMESPACE, NATS_CONF, manifests, render
from tests.contract.distributions import ROOT, SERVICES
from tests.contract.test_compose import settings_of
from tests.support.servers import ServerProcess
from tests.support.waiting import WAIT_S

FOLDER = ROOT / "deploy/kubernetes"
OBJECTS = [one for objects in manifests().values() for one in objects]
_PLAIN: dict[str, type] = {"str": str, "int": int, "bool": bool, "float": float}


def deployment(service: str) -> dict[str, Any]:
    (found,) = (
        one for one in OBJECTS if one["kind"] == "Deployment" and one["metadata"]["name"] == service
    )
    return found


def test_the_files_are_those_that_the_script_writes() -> None:
    for name, objects in manifests().items():
        assert (FOLDER / name).read_text() == render(objects), name
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {p.name for p in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}


@pytest.mark.parametrize("service", SERVICES)
def test_a_deployment_sets_what_its_service_reads(service: str) -> None:
    importlib.import_module(f"rorqual_{service}.settings")
    pod = deployment(service)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {one["name"] for one in container["env"] if one["name"].startswith("RORQUAL_")}
    known = variables_of(settings_of(service)) | variables_of(RuntimeSettings)
    assert given - {"RORQUAL_MODEL_DIR"} <= known
    drain_s = next(one["value"] for one in container["env"] if one["name"] == "RORQUAL_DRAIN_S")
    assert pod["terminationGracePeriodSeconds"] == int(drain_s) + CLOSE_S
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_every_pod_is_let_in_by_a_policy_and_only_the_gateway_by_anybody() -> None:
    policies = {one["metadata"]["name"]: one for one in OBJECTS if one["kind"] == "NetworkPolicy"}
    assert {*SERVICES, "nats", "redis", "deny-all"} <= policies.keys()
    open_to_all = {
        name
        for name, one in policies.items()
        if any("from" not in rule for rule in one["spec"].get("ingress", []))
    }
    assert open_to_all == {"gateway"}


def nats_command(directory: Path, ports: dict[str, int]) -> list[str]:
    """Starts one server of the cluster; its files are made anew."""
    issue(directory)
    folder = directory / "nats"
    config = NATS_CONF.replace("/etc/nats", str(folder)).replace("/data", str(directory / "data"))
    for said, port in ports.items():
        assert said in config
        config = config.replace(said, said.replace(said[-4:], str(port)))
    (folder / "nats.conf").write_text(config)
    return [nats_binary(), "-c", str(folder / "nats.conf"), "--name", "nats-0"]


def test_nats_accepts_its_configuration(tmp_path: Path) -> None:
    command = [*nats_command(tmp_path, {}), "-t"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


async def test_no_service_joins_the_cluster_of_nats_as_a_server(tmp_path: Path) -> None:
    port, joined = free_port(), free_port()
    ports = {"port: 4222": port, "127.0.0.1:8222": free_port(), "  port: 6222": joined}
    server = ServerProcess(nats_command(tmp_path, ports), port, tmp_path / "server")
    await server.start()
    try:
        for identity, answer in (("nats", b"PONG"), ("decode", b"Authorization Violation")):
            said = await asyncio.to_thread(join_cluster, joined, tmp_path, identity)
            assert answer in said, identity
    finally:
        await server.stop()


def join_cluster(port: int, secrets_dir: Path, identity: str) -> bytes:
    """What a server of the cluster says to one that comes with the certificate of an identity."""
    context = ssl.create_default_context(cafile=secrets_dir / "ca.crt")
    folder = secrets_dir / identity
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    hello = {"verbose": False, "tls_required": True, "name": "ROGUE", "cluster": "rorqual"}
    with (
        socket.create_connection(("127.0.0.1", port), WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname="nats") as line,
    ):
        line.sendall(f"CONNECT {json.dumps(hello)}\r\nPING\r\n".encode())
        said = b""
        while not (b"PONG" in said or b"-ERR" in said) and (more := line.recv(4096)):
            said += more
        return said


def test_the_scaler_may_scale_what_it_is_told_to_scale_and_nothing_else() -> None:
    (role,) = (one for one in OBJECTS if one["kind"] == "Role")
    scale, pods = role["rules"]
    assert (scale["resources"], scale["verbs"]) == (["deployments/scale"], ["get", "patch"])
    assert set(scale["resourceNames"]) == set(SCALED)
    assert (pods["resources"], pods["verbs"]) == (["pods"], ["patch"])
    accounts = {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]["automountServiceAccountToken"]
        for one in OBJECTS
        if one["kind"] == "Deployment"
    }
    assert {name for name, mounts in accounts.items() if mounts} == {"scaler"}
    pod = deployment("scaler")["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == role["metadata"]["name"]


def test_the_scalers_bounds_begin_at_what_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = deployment("scaler")["spec"]["template"]["spec"]["containers"]
    for one in container["env"]:
        if one["name"].startswith("RORQUAL_SCALER_"):
            monkeypatch.setenv(one["name"], one["value"])
    settings = ScalerSettings()
    assert (settings.driver, settings.kubernetes_namespace) == ("kubernetes", NAMESPACE)
    for service in SCALED:
        least, most, _ = settings.bounds(service)
        assert least == deployment(service)["spec"]["replicas"] < most


def test_every_object_is_one_of_the_api() -> None:
    for one in OBJECTS:
        assert list(problems(one, f"V1{one['kind']}")) == [], one["metadata"]["name"]
    budget = next(one for one in OBJECTS if one["kind"] == "PodDisruptionBudget")
    broken = {"kind": 1, "spec": {"minAvailable": 1, "selector": {"matchLabel": {}}}}
    said = "".join(problems({**budget, **broken}, "V1PodDisruptionBudget"))
    assert ".kind: 1 is no str" in said
    assert ".spec.selector: no field 'matchLabel'" in said


def problems(value: Any, kind: str, path: str = "") -> Iterator[str]:
    """Where names, types or what must be there are not as Kubernetes' own client has them."""
    if kind.startswith("List["):
        for place, one in enumerate(value):
            yield from problems(one, kind[5:-1], f"{path}[{place}]")
    elif kind.startswith("Dict["):
        for key, one in value.items():
            yield from problems(one, kind[5:-1].partition(", ")[2], f"{path}.{key}")
    elif kind in _PLAIN:
        if type(value) is not _PLAIN[kind]:
            yield f"{path}: {value!r} is no {kind}"
    elif kind != "object":
        yield from _problems_of_model(value, getattr(client, kind), path)


def _problems_of_model(value: dict[str, Any], model: Any, path: str) -> Iterator[str]:
    attributes = {field: name for name, field in model.attribute_map.items()}
    for field in value.keys() - attributes.keys():
        yield f"{path}: no field {field!r}"
    known = {attributes[field]: one for field, one in value.items() if field in attributes}
    try:
        model(**known)
    except ValueError as error:
        yield f"{path}: {error}"
    for name, one in known.items():
        yield from problems(one, model.openapi_types[name], f"{path}.{model.attribute_map[name]}")
