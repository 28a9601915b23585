"""The variables a fleet knows: a misspelt one stops the start, as a wrong value does; one that the
launcher decides by itself is said to be without effect."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module

from rorqual_runtime.settings import known_variables

from rorqual_cli.options import SCALED, SERVICES
from rorqual_cli.problems import CliError

_PREFIX = "RORQUAL_"
_DECIDED_BY_US = {
    "RORQUAL_NATS_URL": "a fleet starts its own NATS",
    "RORQUAL_REDIS_URL": "a fleet starts its own Redis",
    "RORQUAL_SECRETS_DIR": "a fleet makes its own identities, in secrets/ of its home",
    "RORQUAL_INSTANCE_ID": "instances are numbered",
    "RORQUAL_MODEL_DIR": "use --model",
    "RORQUAL_METRICS_PORT": "every instance takes a free one, which `rorqual ps` shows",
    "RORQUAL_DRAIN_S": "use --drain",
    "RORQUAL_GATEWAY_HOST": "use --host",
    "RORQUAL_GATEWAY_PORT": "use --port",
    **{f"RORQUAL_SCALER_MIN_{service.upper()}": f"use --{service}" for service in SCALED},
    **{f"RORQUAL_SCALER_MAX_{service.upper()}": f"use --max-{service}" for service in SCALED},
}


def check_environment(environment: Mapping[str, str]) -> None:
    """Raises: CliError that names the variable no service reads, and the one that was meant."""
    given = sorted(name for name in environment if name.upper().startswith(_PREFIX))
    if not given:
        return
    for service in SERVICES:
        import_module(f"rorqual_{service}.settings")
    known = known_variables()
    for name in given:
        if name.upper() not in known:
            meant = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.8)
            remedy = f"did you mean {meant[0]}?" if meant else "unset it"
            raise CliError(f"no service has a setting {name}", remedy)


def without_effect(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that the launcher sets itself, whatever the environment says."""
    given = {name.upper() for name in environment}
    return [
        f"{name} has no effect here: {instead}"
        for name, instead in _DECIDED_BY_US.items()
        if name in given
    ]
