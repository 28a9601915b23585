"""The files of all identities, made once for a fleet.

<directory>/ca.key, ca.crt             who signs everybody's certificates: stays where it was made
<directory>/<identity>/nats.nk         seed of its NATS key
<directory>/<identity>/redis.password  the same for Redis, where it uses that
<directory>/<identity>/tls.key, tls.crt, ca.crt  for connections between services
<directory>/nats/authorization.conf    what nats-server includes; public keys only
<directory>/redis/users.acl            what redis-server reads; digests of passwords only
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rorqual_runtime.identities.broker import authorization, liveness
from rorqual_runtime.identities.bus_rights import BUS_RIGHTS
from rorqual_runtime.identities.certificates import (
    KeyPair,
    is_good,
    is_pair,
    new_authority,
    new_certificate,
)
from rorqual_runtime.identities.files import (
    NATS_SEED,
    REDIS_PASSWORD,
    TLS_AUTHORITY,
    TLS_CERTIFICATE,
    TLS_KEY,
)
from rorqual_runtime.identities.nkeys import UserKey
from rorqual_runtime.identities.redis_rights import REDIS_RIGHTS, access_list

NATS_AUTHORIZATION = "nats/authorization.conf"
REDIS_USERS = "redis/users.acl"
NATS_HOSTS = ("nats", "*.nats", "localhost")
"""As the servers of a cluster know each other, and as clients know them."""
_PASSWORD_BYTES = 32
_AGAIN = "and issue again for a new one"


def issue(directory: Path, *, owner: int | None = None) -> None:
    """Every identity of the tables has its files, and the servers know them. What is there stays,
    but for empty files, and certificates that soon end or are not of this authority; delete a file
    and issue again to replace it.

    owner: user id that the files of identities are given to; None: whoever calls.
    Raises: OSError; ValueError with the path and the remedy when a file is not what it should be.
    """
    writer = _Writer(directory, owner)
    authority = writer.authority()
    keys, passwords = {}, {}
    for identity, rights in BUS_RIGHTS.items():
        keys[identity] = writer.public_key(identity)
        if identity in REDIS_RIGHTS:
            passwords[identity] = writer.secret(identity, REDIS_PASSWORD, _new_password)
        if rights.is_service:
            writer.certificate(identity, authority)
    writer.publish(NATS_AUTHORIZATION, liveness() + authorization(keys))
    writer.publish(REDIS_USERS, access_list(passwords))
    writer.certificate("nats", authority, NATS_HOSTS)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Puts files below one directory."""

    directory: Path
    owner: int | None

    def authority(self) -> KeyPair:
        """Who signs; made when it is not there."""
        key, certificate = self.directory / "ca.key", self.directory / TLS_AUTHORITY
        found = KeyPair(_content(key), _content(certificate))
        if found.key and found.certificate:
            if not is_pair(found):
                raise ValueError(f"{key} is not the key of {certificate}; delete both {_AGAIN}")
            return found
        pair = new_authority()
        self.directory.mkdir(parents=True, exist_ok=True)
        certificate.unlink(missing_ok=True)  # never beside a key that is not its own
        _replace(key, pair.key, mode=0o600)
        _replace(certificate, pair.certificate, mode=0o644)
        return pair

    def public_key(self, identity: str) -> str:
        """What NATS knows an identity by."""
        seed = self.secret(identity, NATS_SEED, _new_seed)
        try:
            return UserKey(seed).public
        except ValueError as error:
            path = self.directory / identity / NATS_SEED
            raise ValueError(f"{path}: {error}; delete it {_AGAIN}") from error

    def secret(self, identity: str, name: str, make: Callable[[], str]) -> str:
        """What the file of an identity says; made when it is not there, or empty."""
        path = self.directory / identity / name
        try:
            text = _content(path).decode().strip()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not text; delete it {_AGAIN}") from error
        if text:
            return text
        text = make()
        self._write_private(path, f"{text}\n".encode())
        return text

    def certificate(self, identity: str, authority: KeyPair, names: tuple[str, ...] = ()) -> None:
        """An identity has a certificate that is good for a while, and knows who signs."""
        folder = self.directory / identity
        key, certificate = folder / TLS_KEY, folder / TLS_CERTIFICATE
        found = KeyPair(_content(key), _content(certificate))
        knows = _content(folder / TLS_AUTHORITY) == authority.certificate
        if knows and is_pair(found) and is_good(found.certificate, authority):
            return
        pair = new_certificate(authority, identity, names)
        certificate.unlink(missing_ok=True)  # never beside a key that is not its own
        self._write_private(key, pair.key)
        self._write_private(certificate, pair.certificate)
        self._write_private(folder / TLS_AUTHORITY, authority.certificate)

    def publish(self, name: str, text: str) -> None:
        """A file that anybody may read."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text.encode(), mode=0o644)

    def _write_private(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.name in BUS_RIGHTS:
            path.parent.chmod(0o700)
        _replace(path, content, mode=0o600)
        if self.owner is not None:
            for each in (path.parent, path):
                os.chown(each, self.owner, self.owner)


def _new_seed() -> str:
    return UserKey.generate().seed


def _new_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def _content(path: Path) -> bytes:
    """Empty when there is no such file, or nothing but white space in it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return b""
    return content if content.strip() else b""


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    """All of it or nothing, and never readable to others for a moment."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    os.fchmod(descriptor, mode)  # whatever the umask
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # or a crash may leave the name with nothing in it
    temporary.replace(path)
