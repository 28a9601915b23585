"""Fetching by URL: checked addresses only, bounded in bytes, time and redirects."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rorqual_vision.addresses import parse_networks
from rorqual_vision.fetch import FetchLimits, fetch_image
from rorqual_vision.problems import BadImage

from tests.support.certificates import make_certificate
from tests.support.waiting import soon
from tests.support.web_server import answer, web_server

OPEN = FetchLimits(max_bytes=1000, timeout_s=20.0, allowed=parse_networks(["127.0.0.0/8"]))
CLOSED = replace(OPEN, allowed=())


async def test_a_body_arrives_whole_whatever_its_framing() -> None:
    chunked = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    pages = {
        "/a.png?x=1": answer(b"picture"),
        "/c": answer(chunked, Transfer_Encoding="chunked"),
        "/close": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    }
    async with web_server(pages) as server:
        assert await fetch_image(server.url("/a.png?x=1"), OPEN) == b"picture"
        assert await fetch_image(server.url("/c"), OPEN) == b"abcde"
        assert await fetch_image(server.url("/close"), OPEN) == b"until the end"
        assert f"Host: 127.0.0.1:{server.port}" in server.requests[0]


async def test_a_path_can_not_add_headers_and_is_escaped() -> None:
    async with web_server({"/a%20b%C3%A4X:y": answer(b"picture")}) as server:
        assert await fetch_image(server.url("/a bä\r\nX:y"), OPEN) == b"picture"
        assert server.requests[0].count("X:y") == 1


LOCAL = [
    *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "127.0.1", "0"),
    *("2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "017700000001", "0x7f.0.0.01"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[fe80::1]"),
    *("①②⑦.0.0.1", "127。0。0。1", "１２７.0.0.1"),
]
"""This machine, as resolvers read it: decimal, octal, hexadecimal, short, IPv6, other digits."""


@pytest.mark.parametrize("host", LOCAL)
async def test_a_private_host_is_never_asked(host: str) -> None:
    async with web_server({"/": answer(b"secret")}) as server:
        with pytest.raises(BadImage, match=r"not a public one|not known"):
            await fetch_image(server.url("/", host), CLOSED)
        assert server.requests == []


async def test_a_redirect_is_checked_as_the_first_url_was() -> None:
    pages = {
        "/metadata": answer(b"", status="302 Found", Location="http://169.254.169.254/latest"),
        "/file": answer(b"", status="302 Found", Location="file:///etc/passwd"),
        "/near": answer(b"", status="307 Temporary", Location="/there"),
        "/there": answer(b"picture"),
        "/loop": answer(b"", status="301 Moved", Location="/loop"),
    }
    async with web_server(pages) as server:
        assert await fetch_image(server.url("/near"), OPEN) == b"picture"
        with pytest.raises(BadImage, match="not a public one"):
            await fetch_image(server.url("/metadata"), OPEN)
        with pytest.raises(BadImage, match="must begin with http"):
            await fetch_image(server.url("/file"), OPEN)
        with pytest.raises(BadImage, match="more than 3 redirects"):
            await fetch_image(server.url("/loop"), OPEN)


async def test_a_name_is_resolved_once_and_the_checked_address_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second lookup would be free to answer something else."""
    real: Callable[..., Any] = socket.getaddrinfo
    asked: list[Any] = []

    def fake(host: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if host == "images.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    async with web_server({"/": answer(b"picture")}) as server:
        assert await fetch_image(server.url("/", "images.test"), OPEN) == b"picture"
        assert asked.count("images.test") == 1
        with pytest.raises(BadImage, match="not a public one"):
            await fetch_image(server.url("/", "images.test"), CLOSED)


async def test_a_name_that_changes_its_address_between_redirects_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Callable[..., Any] = socket.getaddrinfo
    addresses = iter(["127.0.0.1", "10.0.0.1"])

    def fake(host: Any, *args: Any, **kwargs: Any) -> Any:
        return real(next(addresses) if host == "images.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    async with web_server({"/": answer(b"", status="302 Found", Location="/again")}) as server:
        with pytest.raises(BadImage, match="not a public one"):
            await fetch_image(server.url("/", "images.test"), OPEN)
        assert len(server.requests) == 1


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_server_that_never_comes_to_an_end_is_left(start: bytes) -> None:
    """A byte now and then, in the head or in the body: the bound is on the whole."""
    has_left = asyncio.Event()

    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        with contextlib.suppress(OSError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        has_left.set()
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(BadImage, match="did not arrive within"):
            await fetch_image(f"http://{host}:{port}/", replace(OPEN, timeout_s=0.3))
        await soon(has_left.wait())


async def test_tls_is_checked_for_the_hosts_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Though the connection goes to an address."""
    real: Callable[..., Any] = socket.getaddrinfo

    def fake(host: Any, *args: Any, **kwargs: Any) -> Any:
        is_ours = str(host).endswith(".test")
        return real("127.0.0.1" if is_ours else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    certificate, secret = make_certificate(tmp_path, "images.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, secret)
    async with web_server({"/": answer(b"picture")}, context) as server:
        url = f"https://images.test:{server.port}/"
        with pytest.raises(BadImage, match="could not be reached"):
            await fetch_image(url, OPEN)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await fetch_image(url, OPEN) == b"picture"
        with pytest.raises(BadImage, match="could not be reached"):
            await fetch_image(url.replace("images", "other"), OPEN)
        assert len(server.requests) == 1


async def test_one_private_address_among_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        addresses = ("93.184.216.34", "10.0.0.1")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    with pytest.raises(BadImage, match="not a public one"):
        await fetch_image("http://images.test/", OPEN)


async def test_what_is_too_large_is_refused_before_and_while_it_comes() -> None:
    endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(5000)
    pages = {"/said": answer(b"", Content_Length="1001"), "/unsaid": endless}
    async with web_server(pages) as server:
        for path in pages:
            with pytest.raises(BadImage, match="more than 1000 bytes"):
                await fetch_image(server.url(path), OPEN)


async def test_what_else_goes_wrong_is_said() -> None:
    pages = {
        "/slow": b"",
        "/gzip": answer(b"x", Content_Encoding="gzip"),
        "/cut": answer(b"ab", Content_Length="10"),
        "/rubbish": b"SSH-2.0-server\r\n\r\n",
        "/teapot": answer(b"", status="418 Teapot"),
        "/away": answer(b"", status="302 Found", Location="http://[/"),
    }
    expected = {
        "/slow": "did not arrive within",
        "/gzip": "encoding",
        "/cut": "could not be reached|closed",
        "/rubbish": "could not be reached",
        "/teapot": "status 418",
        "/away": "malformed",
        "/none": "status 404",
    }
    async with web_server(pages) as server:
        for path, said in expected.items():
            limits = replace(OPEN, timeout_s=0.3) if path == "/slow" else OPEN
            with pytest.raises(BadImage, match=said):
                await fetch_image(server.url(path), limits)
    with pytest.raises(BadImage, match="could not be reached"):
        await fetch_image(server.url("/"), OPEN)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com/a", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("file://localhost/etc/passwd", "must begin with http"),
        ("data:image/png;base64,AAAA", "must begin with http"),
        ("gopher://127.0.0.1:6379/_FLUSHALL", "must begin with http"),
        ("//example.com/a", "must begin with http"),
        ("jar:http://example.com/a!/b", "must begin with http"),
        ("http:///a", "name a host"),
        ("http://user:word@example.com/", "user name"),
        ("http://exa mple/", "not known|malformed"),
        ("http://[::1", "malformed"),
        ("http://example.com:99999/", "malformed"),
        ("http://no-such-host.invalid/", "not known"),
    ],
)
async def test_urls_that_are_none(url: str, said: str) -> None:
    with pytest.raises(BadImage, match=said):
        await fetch_image(url, OPEN)
