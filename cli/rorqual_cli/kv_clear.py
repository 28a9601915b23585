"""`rorqual kv clear`: kvmeta forgets blocks of a tenant or a model, and stores delete them."""

from __future__ import annotations

import asyncio

from rorqual_proto.v1 import kvmeta_pb2
from rorqual_runtime import subjects
from rorqual_runtime.bus import Bus
from rorqual_runtime.errors import ServingError
from rorqual_runtime.settings import RuntimeSettings

from rorqual_cli.address import BusAddress
from rorqual_cli.problems import CliError

TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0


def clear(address: BusAddress, *, tenant: str | None, fingerprint: str | None) -> int:
    """Print how many blocks were known; None = of anyone. Raises: CliError."""
    request = kvmeta_pb2.ClearBlocksRequest(
        model_fingerprint=fingerprint or "", tenant=tenant or "", has_tenant=tenant is not None
    )
    try:
        num_cleared = asyncio.run(ask_to_clear(address, request))
    except ServingError as error:
        raise CliError(f"not cleared: {error.message}") from error
    print(f"{num_cleared} blocks cleared")
    return 0


async def ask_to_clear(address: BusAddress, request: kvmeta_pb2.ClearBlocksRequest) -> int:
    """Blocks that kvmeta knew. Raises: ServingError."""
    settings = RuntimeSettings(nats_url=address.url, secrets_dir=address.secrets_dir)
    bus = await Bus.connect(settings, address.identity, timeout_s=CONNECT_TIMEOUT_S)
    try:
        reply = await bus.request(
            subjects.kvmeta_clear(),
            request,
            kvmeta_pb2.ClearBlocksReply,
            timeout_s=TIMEOUT_S,
            absent_timeout_s=1.0,
        )
    finally:
        await bus.close()
    return int(reply.num_cleared)
