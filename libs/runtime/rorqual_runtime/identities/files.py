"""The files that prove who a process is, read at its start from RORQUAL_SECRETS_DIR."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote

from rorqual_runtime.errors import Unsupported
from rorqual_runtime.identities.certificates import KeyPair
from rorqual_runtime.identities.nkeys import UserKey

NATS_SEED = "nats.nk"
REDIS_PASSWORD = "redis.password"
TLS_KEY, TLS_CERTIFICATE, TLS_AUTHORITY = "tls.key", "tls.crt", "ca.crt"


def read_user_key(directory: Path | None) -> UserKey | None:
    """The NATS key of the identity whose files are here; None without a directory.

    Raises: Unsupported when it can't be read.
    """
    if directory is None:
        return None
    path = directory / NATS_SEED
    try:
        return UserKey(_read(path).decode())
    except ValueError as error:
        raise Unsupported(f"RORQUAL_SECRETS_DIR: {path}: {error}") from error


def sign_in_url(redis_url: str, identity: str, directory: Path | None) -> str:
    """The URL with the login of the identity whose files are here; unchanged where it names one
    already, or without a directory.

    Raises: Unsupported when the password can't be read.
    """
    scheme, _, rest = redis_url.partition("://")
    if directory is None or "@" in rest:
        return redis_url
    password = quote(_read(directory / REDIS_PASSWORD).strip(), safe="")
    return f"{scheme}://{quote(identity)}:{password}@{rest}"


def read_key_pair(directory: Path | None) -> tuple[KeyPair, bytes] | None:
    """This identity's key and certificate, and the certificate of who signs for the fleet; None
    without a directory.

    Raises: Unsupported when they can't be read.
    """
    if directory is None:
        return None
    pair = KeyPair(_read(directory / TLS_KEY), _read(directory / TLS_CERTIFICATE))
    return pair, _read(directory / TLS_AUTHORITY)


def trusting_context(directory: Path) -> ssl.SSLContext:
    """For TLS to servers whose certificates the fleet's authority signed, or a public one.

    Raises: Unsupported when the authority's certificate can't be read.
    """
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cadata=_read(directory / TLS_AUTHORITY).decode())
    except (ValueError, ssl.SSLError) as error:
        raise Unsupported(f"RORQUAL_SECRETS_DIR: {directory / TLS_AUTHORITY}: {error}") from error
    return context


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Unsupported(f"RORQUAL_SECRETS_DIR: {path}: {error.strerror}") from error
    if not content.strip():
        raise Unsupported(f"RORQUAL_SECRETS_DIR: {path} is empty")
    return content
