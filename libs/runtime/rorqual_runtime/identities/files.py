"""The files that prove who a process is: made once for a fleet, read by each process at its start.

<directory>/<identity>/nats.nk        seed of its NATS key; its owner alone may read it
<directory>/nats/authorization.conf   what nats-server includes; public keys only
"""

from __future__ import annotations

import os
from pathlib import Path

from rorqual_runtime.errors import Unsupported
from rorqual_runtime.identities.broker import authorization
from rorqual_runtime.identities.bus_rights import BUS_RIGHTS
from rorqual_runtime.identities.nkeys import UserKey

NATS_SEED = "nats.nk"
NATS_AUTHORIZATION = "nats/authorization.conf"


def issue(directory: Path, *, owner: int | None = None) -> None:
    """Every identity of the table has its files, and the servers know them. Keys that are there
    stay; delete one and issue again to replace it.

    owner: user id that the files of identities are given to; None: whoever calls.
    Raises: OSError, ValueError when a seed that is there can't be read.
    """
    keys = {identity: _user_key(directory / identity, owner) for identity in BUS_RIGHTS}
    public_keys = {identity: key.public for identity, key in keys.items()}
    path = directory / NATS_AUTHORIZATION
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, authorization(public_keys), mode=0o644)


def read_user_key(directory: Path | None) -> UserKey | None:
    """The NATS key of the identity whose files are here; None without a directory.

    Raises: Unsupported when it can't be read.
    """
    if directory is None:
        return None
    path = directory / NATS_SEED
    try:
        return UserKey(path.read_text())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise Unsupported(f"RORQUAL_SECRETS_DIR: {path}: {reason}") from error


def _user_key(directory: Path, owner: int | None) -> UserKey:
    path = directory / NATS_SEED
    if path.exists():
        return UserKey(path.read_text())
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    key = UserKey.generate()
    _replace(path, key.seed + "\n", mode=0o600)
    if owner is not None:
        for each in (directory, path):
            os.chown(each, owner, owner)
    return key


def _replace(path: Path, text: str, *, mode: int) -> None:
    """All of it or nothing, and never readable to others for a moment."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    os.fchmod(descriptor, mode)  # whatever the umask
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
