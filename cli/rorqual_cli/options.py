"""What a fleet consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rorqual_cli.model import DEFAULT_MODEL

DEFAULT_HOME = ".rorqual"

SERVICES = (
    "router",
    "kvmeta",
    "recipe",
    "grammar",
    "vision",
    "prefill",
    "decode",
    "scaler",
    "gateway",
)
"""In start order; everything may start before what it needs, and waits for it."""

SCALED = ("prefill", "decode", "vision", "recipe")
"""What the scaler may add to."""

STOP_ORDER = (
    ("scaler", "gateway"),
    ("prefill", "decode", "vision"),
    ("recipe", "router", "grammar", "kvmeta"),
    ("redis", "nats"),
)
"""Requests end at the gateway first, while everything that answers them still runs."""


@dataclass(frozen=True)
class FleetOptions:
    """Everything `rorqual up` can be told."""

    home: Path = Path(DEFAULT_HOME)
    model: str = DEFAULT_MODEL
    host: str = "127.0.0.1"
    port: int = 8000
    """Of the first gateway, others have the ports behind it; 0 = any free ones."""
    num_instances: Mapping[str, int] = field(default_factory=dict)
    """By service; one of each where nothing is said."""
    max_instances: Mapping[str, int] = field(default_factory=dict)
    """Upper bounds of the scaler by service; where nothing is said: what is started, so nothing
    is ever added."""
    otlp_endpoint: str | None = None
    restart: bool = True
    """Whether a crashed process is started again."""
    drain_s: float = 10.0
    """Grace of each process for work under way at the end."""
    ready_timeout_s: float = 180.0
    env: Mapping[str, str] = field(default_factory=dict)
    """Settings for all services, RORQUAL_*, on top of our own environment."""
    instance_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The same by instance id, on top of `env`."""

    def count(self, service: str) -> int:
        """Instances of a service to start."""
        return self.num_instances.get(service, 1)

    def drain_of(self, name: str) -> float:
        """Grace of one instance, in seconds."""
        return float(self.instance_env.get(name, {}).get("RORQUAL_DRAIN_S", self.drain_s))
