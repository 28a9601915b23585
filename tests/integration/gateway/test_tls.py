"""The gateway over HTTPS: a certificate, a stream through it, and pairs that can't be used."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import openai
import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError
from rorqual_gateway.server import TlsFiles
from rorqual_gateway.settings import GatewaySettings
from rorqual_runtime.errors import Unsupported

from tests.support.certificates import make_certificate
from tests.support.chat_model_dir import MODEL_ID
from tests.support.waiting import WAIT_S


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1."""
    return TlsFiles(*make_certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1"))


async def test_answers_stream_over_https_and_plain_http_gets_nothing(
    start_fleet, tls: TlsFiles
) -> None:
    fleet = await start_fleet(tls=tls)
    assert fleet.gateway.url.startswith("https://")
    fleet.say("Hello, world!")
    trust = ssl.create_default_context(cafile=str(tls.cert))
    async with (
        httpx.AsyncClient(verify=trust, timeout=WAIT_S) as http,
        openai.AsyncOpenAI(
            base_url=f"{fleet.gateway.url}/v1", api_key="none", http_client=http
        ) as client,
    ):
        stream = await client.chat.completions.create(
            model=MODEL_ID, messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    assert text == "Hello, world!"
    async with httpx.AsyncClient(timeout=WAIT_S) as stranger:
        with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
            await stranger.get(f"{fleet.gateway.url}/live")
        with pytest.raises(httpx.HTTPError):
            await stranger.get(fleet.gateway.url.replace("https", "http") + "/live")


def with_passphrase(key: Path, directory: Path) -> Path:
    """The same key, encrypted."""
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    path = directory / "encrypted.pem"
    path.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    return path


def test_pairs_that_cant_be_used_stop_the_start(tls: TlsFiles, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="belong together"):
        GatewaySettings(tls_cert=tls.cert)
    tls.check()
    for pair in (
        TlsFiles(tmp_path / "none.pem", tls.key),
        TlsFiles(tls.key, tls.cert),
        TlsFiles(tls.cert, with_passphrase(tls.key, tmp_path)),
    ):
        with pytest.raises(Unsupported, match="RORQUAL_GATEWAY_TLS_CERT"):
            pair.check()
