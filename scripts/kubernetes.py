"""Writes the Kubernetes manifests: what the services have in common is said once, here.

.venv/bin/python scripts/kubernetes.py deploy/kubernetes
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NAMESPACE = "rorqual"
IMAGE = "rorqual/{}:latest"
MODEL_DIR = "/models/smollm2-135m-instruct"
HOME = "/var/lib/rorqual"
SECRETS_DIR = "/etc/rorqual/secrets"
METRICS_PORT, HTTP_PORT, NATS_PORT, REDIS_PORT = 9400, 8000, 4222, 6379
CLOSE_S = 30
"""From the end of a drain until the pod is killed."""
USER = 10001

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Service:
    """What differs from service to service."""

    cpu: str
    memory: str
    replicas: int = 1
    has_model: bool = False
    has_store: bool = False
    drain_s: int = 60
    """Time for its work to end; decode's answers have a minute before they move"""
    shm: str = "256Mi"
    """Shared memory of the tensor plane"""
    max_replicas: int = 0
    """Above 0: the scaler keeps it between `replicas` and so many"""
    is_single: bool = False
    """Never two at once, not even while one takes the place of the other"""
    has_account: bool = False
    """It speaks to the cluster, as the account of its name"""
    variables: tuple[tuple[str, str], ...] = ()


SERVICES: dict[str, Service] = {
    "gateway": Service("1", "1Gi", 2, variables=(("RORQUAL_GATEWAY_HOST", "0.0.0.0"), ("RORQUAL_GATEWAY_STORED_KEYS", "true"))),
    "recipe": Service("1", "1Gi", 2, has_model=True, max_replicas=8),
    "router": Service("1", "1Gi", 2, has_model=True, variables=(("RORQUAL_ROUTER_QUEUE_REPLICAS", "3"),)),
    "prefill": Service("4", "8Gi", 2, has_model=True, has_store=True, shm="2Gi", max_replicas=8),
    "decode": Service("4", "8Gi", 2, has_model=True, has_store=True, drain_s=90, shm="2Gi", max_replicas=8),
    "vision": Service("2", "4Gi", 1, has_model=True, shm="1Gi", max_replicas=4),
    "kvmeta": Service("1", "2Gi", 2),
    "grammar": Service("1", "2Gi", 1, has_model=True),
    "scaler": Service("250m", "512Mi", 1, is_single=True, has_account=True, variables=(("RORQUAL_SCALER_DRIVER", "kubernetes"), ("RORQUAL_SCALER_KUBERNETES_NAMESPACE", NAMESPACE))),
}  # fmt: skip
"""By service. gateway asks for keys: make the first with `rorqual keys create`. Two scalers would
undo each other's work, so there is one."""
_NEEDS_REDIS = ("kvmeta", "recipe", "gateway")


def manifests() -> dict[str, list[Manifest]]:
    """Objects by file name."""
    files = {f"{name}.yaml": service_objects(name, facts) for name, facts in SERVICES.items()}
    return {
        "namespace.yaml": [_object("v1", "Namespace", NAMESPACE, labels={"pod-security.kubernetes.io/enforce": "restricted"})],
        "storage.yaml": [_claim("models", "ReadOnlyMany", "20Gi"), _claim("store", "ReadWriteMany", "200Gi")],
        "nats.yaml": _nats(),
        "redis.yaml": _redis(),
        **files,
        "policies.yaml": _policies(),
    }  # fmt: skip


def service_objects(name: str, facts: Service) -> list[Manifest]:
    """A deployment, what finds it, what keeps some of it up, and what it may do in the cluster."""
    objects = [_deployment(name, facts), _service(name)]
    if facts.replicas > 1:
        objects.append(_budget(name))
    if facts.has_account:
        objects += _account(name)
    return objects


def _object(api: str, kind: str, name: str, *, labels: dict[str, str] | None = None, **parts: Any) -> Manifest:  # fmt: skip
    where = {} if kind == "Namespace" else {"namespace": NAMESPACE}
    labels = {"app.kubernetes.io/part-of": "rorqual", **(labels or {})}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **where, "labels": labels}, **parts}  # fmt: skip


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "rorqual"}


def _deployment(name: str, facts: Service) -> Manifest:
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    template = {
        "metadata": {"labels": _labels(name), "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": facts.drain_s + CLOSE_S,
            **({"serviceAccountName": name} if facts.has_account else {}),
            "automountServiceAccountToken": facts.has_account,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": name}},
                }
            ],
            "containers": [_container(name, facts, _environment(name, facts))],
            "volumes": _volumes(name, facts),
        },
    }
    strategy: Manifest = {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }
    if facts.is_single:
        strategy = {"type": "Recreate"}
    spec = {
        "replicas": facts.replicas,
        "strategy": strategy,
        "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
        "template": template,
    }
    return _object("apps/v1", "Deployment", name, labels=_labels(name), spec=spec)


def _container(name: str, facts: Service, environment: list[Manifest]) -> Manifest:
    probe = {
        "exec": {"command": ["/opt/rorqual/bin/python", "-IS", "/opt/rorqual/healthcheck.py", name]},
        "periodSeconds": 10,
        "timeoutSeconds": 4,
    }  # fmt: skip
    live: Manifest = {"tcpSocket": {"port": "metrics"}, "periodSeconds": 10, "failureThreshold": 6}
    ready = probe
    if name == "gateway":
        ready = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 5}
        live = {"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 10}
    ports = [{"name": "metrics", "containerPort": METRICS_PORT}]
    if name == "gateway":
        ports.append({"name": "http", "containerPort": HTTP_PORT})
    return {
        "name": name,
        "image": IMAGE.format(name),
        "env": environment,
        "ports": ports,
        "startupProbe": {**ready, "periodSeconds": 5, "failureThreshold": 120},
        "readinessProbe": ready,
        "livenessProbe": live,
        "resources": {"requests": {"cpu": facts.cpu, "memory": facts.memory}, "limits": {"memory": facts.memory}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(facts),
    }  # fmt: skip


def _environment(name: str, facts: Service) -> list[Manifest]:
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    fixed = {
        "RORQUAL_NATS_URL": f"tls://nats:{NATS_PORT}",
        "RORQUAL_SECRETS_DIR": SECRETS_DIR,
        "RORQUAL_HOME": HOME,
        "RORQUAL_MODEL_DIR": MODEL_DIR,
        "RORQUAL_METRICS_HOST": "0.0.0.0",
        "RORQUAL_METRICS_PORT": str(METRICS_PORT),
        "RORQUAL_DRAIN_S": str(facts.drain_s),
        "NUMBA_CACHE_DIR": "/tmp/numba",
        "TRITON_HOME": "/tmp/triton",
        **dict(facts.variables),
        **(_bounds() if name == "scaler" else {}),
    }
    variables: list[Manifest] = [{"name": key, "value": value} for key, value in fixed.items()]
    variables.append({"name": "RORQUAL_ADVERTISE_HOST", "valueFrom": address})
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    variables.append({"name": "RORQUAL_INSTANCE_ID", "valueFrom": pod_name})
    if name in _NEEDS_REDIS:
        variables.append({"name": "RORQUAL_REDIS_URL", "value": f"redis://redis:{REDIS_PORT}/0"})
    return variables


def _bounds() -> dict[str, str]:
    """Of what the scaler scales. Its `replicas` are what a fleet starts with and never falls below."""
    found = {}
    for name, facts in SERVICES.items():
        if facts.max_replicas:
            found[f"RORQUAL_SCALER_MIN_{name.upper()}"] = str(facts.replicas)
            found[f"RORQUAL_SCALER_MAX_{name.upper()}"] = str(facts.max_replicas)
    return found


def _volumes(name: str, facts: Service) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "secrets", "secret": {"secretName": f"rorqual-{name}", "defaultMode": 0o440}},
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": facts.shm}},
    ]
    if facts.has_model:
        volumes.append({"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}})  # fmt: skip
    if facts.has_store:
        volumes.append({"name": "store", "persistentVolumeClaim": {"claimName": "store"}})
    return volumes


def _mounts(facts: Service) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": "secrets", "mountPath": SECRETS_DIR, "readOnly": True},
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if facts.has_model:
        mounts.append({"name": "models", "mountPath": "/models", "readOnly": True})
    if facts.has_store:
        mounts.append({"name": "store", "mountPath": f"{HOME}/store"})
    return mounts


def _service(name: str) -> Manifest:
    """Headless: what talks to an instance asks discovery for its address. Clients use `gateway`."""
    ports = [{"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics"}]
    spec: Manifest = {"selector": {"app.kubernetes.io/name": name}, "ports": ports}
    if name == "gateway":
        ports.insert(0, {"name": "http", "port": HTTP_PORT, "targetPort": "http"})
    else:
        spec["clusterIP"] = "None"
    return _object("v1", "Service", name, labels=_labels(name), spec=spec)


def _budget(name: str) -> Manifest:
    selector = {"matchLabels": {"app.kubernetes.io/name": name}}
    spec = {"maxUnavailable": 1, "selector": selector}
    return _object("policy/v1", "PodDisruptionBudget", name, labels=_labels(name), spec=spec)


def _account(name: str) -> list[Manifest]:
    """It reads and writes how many pods each Deployment of this namespace has, and says of a pod
    that it is to go first. RBAC can't narrow that to the annotation: it may patch any pod here."""
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments/scale"], "resourceNames": _scaled(), "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    ]  # fmt: skip
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    api = "rbac.authorization.k8s.io/v1"
    return [
        _object("v1", "ServiceAccount", name, labels=_labels(name)),
        _object(api, "Role", name, labels=_labels(name), rules=rules),
        _object(api, "RoleBinding", name, labels=_labels(name), roleRef=role, subjects=[subject]),
    ]


def _scaled() -> list[str]:
    return [name for name, facts in SERVICES.items() if facts.max_replicas]


def _claim(name: str, mode: str, size: str) -> Manifest:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
    return _object("v1", "PersistentVolumeClaim", name, spec=spec)


NATS_CONF = """\
port: 4222
http: "127.0.0.1:8222"
tls { cert_file: "/etc/nats/tls.crt", key_file: "/etc/nats/tls.key" }
include "authorization.conf"
jetstream { store_dir: /data, max_file_store: 8Gi }
cluster {
  name: rorqual
  port: 6222
  tls { cert_file: "/etc/nats/tls.crt", key_file: "/etc/nats/tls.key", ca_file: "/etc/nats/ca.crt", verify_cert_and_check_known_urls: true }
  routes: [
    nats://nats-0.nats:6222
    nats://nats-1.nats:6222
    nats://nats-2.nats:6222
  ]
}
"""


def _nats() -> list[Manifest]:
    """Three servers, each with the queue: one may be away."""
    config = _object("v1", "ConfigMap", "nats", data={"nats.conf": NATS_CONF})
    command = ["nats-server", "-c", "/etc/nats/nats.conf", "--name", "$(POD)"]
    container = {
        "name": "nats",
        "image": "nats:2.12-alpine",
        "command": command,
        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "ports": [{"name": "client", "containerPort": NATS_PORT}, {"name": "cluster", "containerPort": 6222}],
        "readinessProbe": {"exec": {"command": ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8222/healthz?js-enabled-only=true"]}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "config", "mountPath": "/etc/nats"}],
    }  # fmt: skip
    sources = [{"configMap": {"name": "nats"}}, {"secret": {"name": "rorqual-nats"}}]
    volumes = [{"name": "config", "projected": {"sources": sources, "defaultMode": 0o440}}]
    budget = _object("policy/v1", "PodDisruptionBudget", "nats", spec={"maxUnavailable": 1, "selector": _select("nats")})  # fmt: skip
    return [config, *_stateful("nats", 3, container, volumes, "10Gi", NATS_PORT), budget]


def _redis() -> list[Manifest]:
    """One server; for more, name them in RORQUAL_REDIS_URL as `redis+sentinel://` or
    `redis+cluster://`."""
    command = ["redis-server", "--aclfile", "/etc/redis/users.acl", "--dir", "/data", "--save", "60 100 300 1", "--maxmemory", "2gb", "--maxmemory-policy", "volatile-lru"]  # fmt: skip
    container = {
        "name": "redis",
        "image": "redis:7.4-alpine",
        "command": command,
        "ports": [{"name": "client", "containerPort": REDIS_PORT}],
        "readinessProbe": {"tcpSocket": {"port": "client"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "users", "mountPath": "/etc/redis", "readOnly": True}],
    }  # fmt: skip
    volumes = [{"name": "users", "secret": {"secretName": "rorqual-redis", "defaultMode": 0o440}}]
    return _stateful("redis", 1, container, volumes, "10Gi", REDIS_PORT)


def _stateful(
    name: str, replicas: int, container: Manifest, volumes: list[Manifest], size: str, port: int
) -> list[Manifest]:
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}  # fmt: skip
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}}  # fmt: skip
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    spec = {
        "serviceName": name,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": _select(name),
        "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        "volumeClaimTemplates": [claim],
    }
    service = {
        "selector": {"app.kubernetes.io/name": name},
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "ports": [{"name": "client", "port": port}],
    }
    return [
        _object("v1", "Service", name, labels=_labels(name), spec=service),
        _object("apps/v1", "StatefulSet", name, labels=_labels(name), spec=spec),
    ]


def _select(name: str) -> Manifest:
    return {"matchLabels": {"app.kubernetes.io/name": name}}


_FLEET = {"podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "rorqual"}}}
_WATCHERS = {"namespaceSelector": {"matchLabels": {"rorqual.dev/scrapes": "true"}}}
_DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def _policies() -> list[Manifest]:
    """Nothing comes in or goes out but what is named here."""
    public = {
        "ipBlock": {
            "cidr": "0.0.0.0/0",
            "except": ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"],
        }
    }  # fmt: skip
    redis_clients = [{"podSelector": _select(name)} for name in _NEEDS_REDIS]
    return [
        _policy("deny-all", {}, ["Ingress", "Egress"]),
        _policy("fleet", _FLEET["podSelector"], ["Egress"], egress=[{"to": [_FLEET]}, _DNS]),
        *(
            _policy(name, _select(name), ["Ingress"], ingress=[{"from": [_FLEET]}, _scrapes()])
            for name in SERVICES
            if name != "gateway"
        ),
        _policy("gateway", _select("gateway"), ["Ingress"], ingress=[{"ports": [{"port": "http"}]}, {"from": [_FLEET]}, _scrapes()]),
        _policy("nats", _select("nats"), ["Ingress"], ingress=[
            {"from": [_FLEET], "ports": [{"port": NATS_PORT}]},
            {"from": [{"podSelector": _select("nats")}], "ports": [{"port": 6222}]},
        ]),
        _policy("redis", _select("redis"), ["Ingress"], ingress=[{"from": redis_clients, "ports": [{"port": REDIS_PORT}]}]),
        _policy("scaler-api", _select("scaler"), ["Egress"], egress=[{"ports": [{"port": 443}, {"port": 6443}]}]),
        _policy("vision-fetches", _select("vision"), ["Egress"], egress=[{"to": [public], "ports": [{"port": 443}, {"port": 80}]}]),
    ]  # fmt: skip


def _scrapes() -> Manifest:
    return {"from": [_WATCHERS], "ports": [{"port": METRICS_PORT}]}


def _policy(name: str, selector: Manifest, kinds: list[str], **rules: Any) -> Manifest:
    spec = {"podSelector": selector, "policyTypes": kinds, **rules}
    return _object("networking.k8s.io/v1", "NetworkPolicy", name, spec=spec)


def write(directory: Path) -> None:
    """All files, and the list of them."""
    for name, objects in manifests().items():
        (directory / name).write_text(render(objects))
    resources = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": list(manifests())}  # fmt: skip
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(resources, sort_keys=False))


def render(objects: list[Manifest]) -> str:
    """Objects as one file."""
    return yaml.safe_dump_all(objects, sort_keys=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
