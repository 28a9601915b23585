"""gRPC between instances: both ends belong to the fleet, or there is no connection."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from rorqual_proto.v1 import tensor_pb2
from rorqual_runtime.errors import Unavailable, Unsupported
from rorqual_runtime.identities.certificates import is_good, new_authority
from rorqual_runtime.identities.files import TLS_CERTIFICATE, TLS_KEY
from rorqual_runtime.identities.issue import issue
from rorqual_runtime.tensors.grpc_server import SERVICE_NAME

from tests.support.tensor_process import open_plane
from tests.support.waiting import WAIT_S

PAYLOAD = np.arange(300_000, dtype=np.uint8)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one fleet in ours/, of another in theirs/."""
    home = tmp_path_factory.mktemp("secrets")
    issue(home / "ours")
    issue(home / "theirs")
    return home


def far(secrets_dir: Path | None, name: str = "reader"):
    """A plane that shares no memory with others."""
    return open_plane(name, host_id="", shm_bytes=1 << 20, secrets_dir=secrets_dir)


async def test_services_of_one_fleet_read_from_each_other(secrets: Path) -> None:
    async with (
        await far(secrets / "ours" / "prefill", "owner") as owner,
        await far(secrets / "ours" / "decode") as reader,
    ):
        ticket = await owner.publish(PAYLOAD)
        assert np.array_equal(await reader.fetch(ticket), PAYLOAD)
        assert await reader.release_remote(ticket)


@pytest.mark.parametrize("stranger", ["theirs/decode", None], ids=["another fleet", "nobody"])
async def test_who_is_not_of_the_fleet_reads_nothing(secrets: Path, stranger: str | None) -> None:
    async with (
        await far(secrets / "ours" / "prefill", "owner") as owner,
        await far(secrets / stranger if stranger else None) as reader,
    ):
        ticket = await owner.publish(PAYLOAD)
        with pytest.raises(Unavailable):
            await reader.fetch(ticket)
        assert not await _releases(owner.address, ticket)
        assert owner.num_held == 1


async def test_an_owner_that_is_not_of_the_fleet_is_not_read_from(secrets: Path) -> None:
    async with (
        await far(secrets / "theirs" / "prefill", "owner") as impostor,
        await far(secrets / "ours" / "decode") as reader,
    ):
        with pytest.raises(Unavailable):
            await reader.fetch(await impostor.publish(PAYLOAD))


async def _releases(address: str, ticket: tensor_pb2.TensorTicket) -> bool:
    """Whether somebody without any certificate gets through."""
    async with grpc.aio.insecure_channel(address) as channel:
        release = channel.unary_unary(f"/{SERVICE_NAME}/Release")
        request = tensor_pb2.ReleaseRequest(ticket=ticket).SerializeToString()
        try:
            await release(request, timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            return False
        return True


async def test_a_missing_key_ends_the_start_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"RORQUAL_SECRETS_DIR: .*tls\.key"):
        await far(tmp_path)


def test_certificates_stay_and_are_made_anew_when_they_are_of_somebody_else(tmp_path: Path) -> None:
    issue(tmp_path)
    certificate, key = tmp_path / "decode" / TLS_CERTIFICATE, tmp_path / "decode" / TLS_KEY
    before = certificate.read_bytes()
    issue(tmp_path)
    assert certificate.read_bytes() == before
    certificate.write_bytes(b"none")
    issue(tmp_path)
    assert certificate.read_bytes() not in (before, b"none")
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca.key").stat().st_mode & 0o777 == 0o600
    assert not is_good(before, new_authority())
