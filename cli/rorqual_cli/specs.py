"""From options to the processes of a fleet."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rorqual_cli.address import fleet_secrets
from rorqual_cli.options import SCALED, SERVICES, FleetOptions
from rorqual_cli.processes import ProcessSpec


@dataclass(frozen=True)
class Endpoints:
    """Addresses that are decided before anything starts."""

    host: str
    port: int
    nats_port: int
    redis_port: int
    more_ports: Sequence[int] = ()
    """Of the gateways behind the first one."""

    @property
    def base_url(self) -> str:
        """Where a client on this machine reaches the first gateway."""
        return self.base_urls[0]

    @property
    def base_urls(self) -> list[str]:
        """Where a client on this machine reaches each gateway."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return [f"http://{host}:{port}" for port in (self.port, *self.more_ports)]

    def gateway_port(self, number: int) -> int:
        """Of the gateway of this number; they count from 1."""
        return (self.port, *self.more_ports)[number - 1]

    @property
    def nats_url(self) -> str:
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"


def service_specs(
    options: FleetOptions, home: Path, model_dir: Path, endpoints: Endpoints
) -> list[ProcessSpec]:
    """One spec an instance of each service, in start order."""
    shared = _shared_env(options, home, model_dir, endpoints)
    specs = []
    for service in SERVICES:
        for number in range(1, options.count(service) + 1):
            name = f"{service}-{number}"
            env = {
                **shared,
                **_service_env(service, number, options, endpoints),
                **options.env,
                **options.instance_env.get(name, {}),
                "RORQUAL_INSTANCE_ID": name,
                "RORQUAL_SECRETS_DIR": str(fleet_secrets(home) / service),
            }
            command = (sys.executable, "-m", f"rorqual_{service}")
            specs.append(ProcessSpec(name, service, command, home / "logs" / f"{name}.log", env))
    return specs


def _shared_env(
    options: FleetOptions, home: Path, model_dir: Path, endpoints: Endpoints
) -> dict[str, str]:
    env = {
        "RORQUAL_NATS_URL": endpoints.nats_url,
        "RORQUAL_REDIS_URL": endpoints.redis_url,
        "RORQUAL_HOME": str(home),
        "RORQUAL_MODEL_DIR": str(model_dir),
        "RORQUAL_DRAIN_S": f"{options.drain_s:g}",
        "RORQUAL_METRICS_PORT": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if options.otlp_endpoint:
        env["RORQUAL_OTLP_ENDPOINT"] = options.otlp_endpoint
    return env


def _service_env(
    service: str, number: int, options: FleetOptions, endpoints: Endpoints
) -> Mapping[str, str]:
    if service == "gateway":
        return {
            "RORQUAL_GATEWAY_HOST": endpoints.host,
            "RORQUAL_GATEWAY_PORT": str(endpoints.gateway_port(number)),
        }
    if service == "scaler":
        return _scaler_env(options)
    return {}


def _scaler_env(options: FleetOptions) -> Mapping[str, str]:
    """Bounds: never below what was started, and above it only where that was allowed."""
    env = {}
    for service in SCALED:
        started = options.count(service)
        most = max(started, options.max_instances.get(service, 0))
        env[f"RORQUAL_SCALER_MIN_{service.upper()}"] = str(started)
        env[f"RORQUAL_SCALER_MAX_{service.upper()}"] = str(most)
    return env
