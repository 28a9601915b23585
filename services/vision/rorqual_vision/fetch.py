"""Images by URL: resolved once, checked, and fetched from the very address that was checked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import h11

from rorqual_vision.addresses import Network, is_allowed
from rorqual_vision.problems import BadImage

_SCHEMES = {"http": 80, "https": 443}
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READ_BYTES = 65_536
_KEPT_IN_URLS = "/?:@!$&'()*+,;=-._~%[]"
_MAX_ADDRESSES = 4
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """allowed: networks that may be asked though they are not public."""

    max_bytes: int = 20 << 20
    timeout_s: float = 15.0
    max_redirects: int = 3
    allowed: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    path: str
    is_tls: bool

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = _SCHEMES["https" if self.is_tls else "http"]
        return name if self.port == usual else f"{name}:{self.port}"


async def fetch_image(url: str, limits: FetchLimits) -> bytes:
    """The body behind a URL. Raises: BadImage, whose text says nothing about what is not public."""
    try:
        async with asyncio.timeout(limits.timeout_s):
            return await _follow(url, limits)
    except TimeoutError:
        raise BadImage(f"the image did not arrive within {limits.timeout_s:.0f} s") from None
    except (OSError, h11.ProtocolError):  # includes TLS
        raise BadImage("the image's server could not be reached") from None


async def _follow(url: str, limits: FetchLimits) -> bytes:
    for _ in range(limits.max_redirects + 1):
        target = _target_of(url)
        addresses = await _resolve(target, limits.allowed)
        async with _connection(target, addresses) as (reader, writer):
            answer = await _Exchange(reader, writer, limits.max_bytes).run(target)
        if isinstance(answer, bytes):
            return answer
        url = _joined(url, answer.location)
    raise BadImage(f"the image's URL leads through more than {limits.max_redirects} redirects")


def _joined(url: str, location: str) -> str:
    """Raises: BadImage."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise BadImage("the image's URL leads to one that is malformed") from None


def _target_of(url: str) -> _Target:
    """Raises: BadImage."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host = host if host.isascii() else host.encode("idna").decode()
    except (ValueError, UnicodeError):
        raise BadImage("the image's URL is malformed") from None
    if parts.scheme not in _SCHEMES or not host:
        raise BadImage("the image's URL must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise BadImage("the image's URL must not hold a user name or password")
    is_tls = parts.scheme == "https"
    return _Target(host, port or _SCHEMES[parts.scheme], _path_of(parts), is_tls)


def _path_of(parts: SplitResult) -> str:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return quote(path, safe=_KEPT_IN_URLS)


async def _resolve(target: _Target, allowed: Sequence[Network]) -> list[str]:
    """Every address of the host. Raises: BadImage when one of them is not to be asked."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BadImage("the image's host is not known") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not addresses or not all(is_allowed(address, allowed) for address in addresses):
        raise BadImage("the image's host is not a public one")
    return addresses[:_MAX_ADDRESSES]


@asynccontextmanager
async def _connection(
    target: _Target, addresses: Sequence[str]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the first of these addresses that takes one; names are not looked up."""
    reader, writer = await _connect(target, addresses)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await writer.wait_closed()


async def _connect(
    target: _Target, addresses: Sequence[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context, name = None, None
    if target.is_tls:  # reading the trusted certificates takes too long for the event loop
        context, name = await asyncio.to_thread(ssl.create_default_context), target.host
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(
                address, target.port, ssl=context, server_hostname=name
            )
    return await asyncio.open_connection(
        addresses[-1], target.port, ssl=context, server_hostname=name
    )


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int
    ) -> None:
        self._reader, self._writer, self._max_bytes = reader, writer, max_bytes
        self._http = h11.Connection(our_role=h11.CLIENT)

    async def run(self, target: _Target) -> bytes | _Redirect:
        """The body, or where to ask instead. Raises: BadImage, OSError, ProtocolError."""
        headers = [
            ("Host", target.host_header),
            ("Accept", "image/webp, image/png, image/jpeg, image/gif"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "rorqual-vision"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=target.path, headers=headers)
        for event in (request, h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()
        head = await self._next()
        while isinstance(head, h11.InformationalResponse):
            head = await self._next()
        if not isinstance(head, h11.Response):
            raise BadImage("the image's server closed the connection")
        if (redirect := self._checked(head)) is not None:
            return redirect
        return await self._body()

    def _checked(self, head: h11.Response) -> _Redirect | None:
        headers = {name: value.decode("latin-1") for name, value in head.headers}
        if head.status_code in _REDIRECTS and b"location" in headers:
            return _Redirect(headers[b"location"])
        if head.status_code != 200:
            raise BadImage(f"the image's server answered with status {head.status_code}")
        if headers.get(b"content-encoding", "identity") != "identity":
            raise BadImage("the image's server sent it in an encoding that was not asked for")
        if int(headers.get(b"content-length", "0")) > self._max_bytes:
            raise self._too_large()
        return None

    async def _body(self) -> bytes:
        body = bytearray()
        while isinstance(event := await self._next(), h11.Data):
            body += event.data
            if len(body) > self._max_bytes:
                raise self._too_large()
        if not isinstance(event, h11.EndOfMessage):
            raise BadImage("the image's server closed the connection")
        return bytes(body)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_READ_BYTES))
        return event

    def _too_large(self) -> BadImage:
        return BadImage(f"the image's file has more than {self._max_bytes} bytes")
