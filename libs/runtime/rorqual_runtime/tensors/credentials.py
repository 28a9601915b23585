"""How the ends of a gRPC connection prove that they belong to the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from rorqual_runtime.identities.certificates import FLEET_NAME
from rorqual_runtime.identities.files import read_key_pair

_CHECKED_NAME = (("grpc.ssl_target_name_override", FLEET_NAME),)


@dataclass(frozen=True, slots=True)
class LinkCredentials:
    """Of one process, for both directions. None: connections are open to anybody."""

    server: grpc.ServerCredentials | None = None
    channel: grpc.ChannelCredentials | None = None

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Have the server listen; the port. Raises: RuntimeError when it can't be had."""
        if self.server is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, self.server))

    def dial(self, address: str, options: tuple[tuple[str, int], ...]) -> grpc.aio.Channel:
        """A channel that connects when it is used."""
        if self.channel is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self.channel, options=(*options, *_CHECKED_NAME))


def link_credentials(secrets_dir: Path | None) -> LinkCredentials:
    """Both ends show a certificate of the fleet's own authority, where there is a directory.

    Raises: Unsupported when its files can't be read.
    """
    found = read_key_pair(secrets_dir)
    if found is None:
        return LinkCredentials()
    pair, authority = found
    return LinkCredentials(
        grpc.ssl_server_credentials(
            [(pair.key, pair.certificate)], root_certificates=authority, require_client_auth=True
        ),
        grpc.ssl_channel_credentials(authority, pair.key, pair.certificate),
    )
