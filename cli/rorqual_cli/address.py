"""Where the NATS of a fleet is, and as whom a command signs in there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rorqual_runtime.connection import without_login
from rorqual_runtime.settings import RuntimeSettings

from rorqual_cli.state import running_state


@dataclass(frozen=True)
class BusAddress:
    """What it takes to connect."""

    url: str
    identity: str = "cli"
    """Its subjects and rights: those of `rorqual_runtime.identities`."""
    secrets_dir: Path | None = None
    """With the files of this identity; None: the server asks nobody."""

    @property
    def shown(self) -> str:
        """The URL, without the login that it may name."""
        return ",".join(map(without_login, self.url.split(",")))


def fleet_secrets(home: Path) -> Path:
    """Where a local fleet keeps what proves who its processes are, one folder an identity."""
    return home / "secrets"


def bus_address(nats_url: str | None, home: Path, identity: str = "cli") -> BusAddress:
    """Of the NATS that was named, with RORQUAL_SECRETS_DIR, or else of the fleet of this home.

    Raises: CliError when no fleet runs there.
    """
    if nats_url:
        return BusAddress(nats_url, identity, RuntimeSettings().secrets_dir)
    return BusAddress(running_state(home).nats_url, identity, fleet_secrets(home) / identity)
