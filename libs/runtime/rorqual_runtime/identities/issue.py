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

from rorqual_runtime.identities.broker import authorization
from rorqual_runtime.identities.bus_rights import BUS_RIGHTS
from rorqual_runtime.identities.certificates import (
    KeyPair,
    is_good,
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


def issue(directory: Path, *, owner: int | None = None) -> None:
    """Every identity of the tables has its files, and the servers know them. What is there stays,
    but for certificates that soon end; delete a file and issue again to replace it.

    owner: user id that the files of identities are given to; None: whoever calls.
    Raises: OSError, ValueError when a file that is there can't be read.
    """
    writer = _Writer(directory, owner)
    authority = writer.authority()
    keys, passwords = {}, {}
    for identity, rights in BUS_RIGHTS.items():
        keys[identity] = UserKey(writer.secret(identity, NATS_SEED, _new_seed)).public
        if identity in REDIS_RIGHTS:
            passwords[identity] = writer.secret(identity, REDIS_PASSWORD, _new_password)
        if rights.is_service:
            writer.certificate(identity, authority)
    writer.publish(NATS_AUTHORIZATION, authorization(keys))
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
        if key.exists() and certificate.exists():
            return KeyPair(key.read_bytes(), certificate.read_bytes())
        pair = new_authority()
        self.directory.mkdir(parents=True, exist_ok=True)
        _replace(key, pair.key, mode=0o600)
        _replace(certificate, pair.certificate, mode=0o644)
        return pair

    def secret(self, identity: str, name: str, make: Callable[[], str]) -> str:
        """What the file of an identity says; made when it is not there."""
        path = self.directory / identity / name
        if path.exists():
            return path.read_text().strip()
        text = make()
        self._write_private(path, f"{text}\n".encode())
        return text

    def certificate(self, identity: str, authority: KeyPair, names: tuple[str, ...] = ()) -> None:
        """An identity has a certificate that is good for a while."""
        folder = self.directory / identity
        key, certificate = folder / TLS_KEY, folder / TLS_CERTIFICATE
        is_there = key.exists() and certificate.exists()
        if is_there and is_good(certificate.read_bytes(), authority):
            return
        pair = new_certificate(authority, identity, names)
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


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    """All of it or nothing, and never readable to others for a moment."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    os.fchmod(descriptor, mode)  # whatever the umask
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)
