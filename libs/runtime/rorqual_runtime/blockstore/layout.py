"""The directory of a block store: who it is, how large it may be, what else lies in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from rorqual_runtime.blockstore.descriptors import open_descriptor
from rorqual_runtime.blockstore.record import fingerprint_digest, unnamed
from rorqual_runtime.blockstore.segment import DATA_SUFFIX, INDEX_SUFFIX
from rorqual_runtime.logs import get_logger

_IDENTITY = "STORE.json"
_VERSION = 2
_CLASS_PREFIX = "slots-"
_OLD_MARK = "usage-1"
_OLD_NAMES = re.compile(r"[0-9a-f]{2}|tmp|usage-1")
"""Of format 1: one file a block in 256 folders."""
_LOCK_WAIT_S = 2.0
_LOCK_POLL_S = 0.002

log = get_logger(__name__)


class StoreDirectory:
    """Opens or begins a store. Raises: OSError when the directory cannot be used at all."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        (root / "fingerprints").mkdir(exist_ok=True)
        with self.locked():
            self.store_id = self._read_identity() or self._begin()
        self._names: dict[bytes, str] = {}

    def is_gone(self) -> bool:
        """Whether somebody has deleted the store or begun another one in its place."""
        try:
            return self._read_identity() != self.store_id
        except OSError:  # not to be read just now
            return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Exclusive among processes while files are created; False when a holder is stuck, or the
        file system has no locks: then go on with care. Raises: OSError."""
        file = open_descriptor(self.root / "lock", os.O_RDWR | os.O_CREAT)
        yield _lock_within(file.fd, _LOCK_WAIT_S)
        with contextlib.suppress(OSError):
            fcntl.flock(file.fd, fcntl.LOCK_UN)

    def class_path(self, slot_bytes: int) -> Path:
        return self.root / f"{_CLASS_PREFIX}{slot_bytes}"

    def slot_sizes(self) -> list[int]:
        """Slot sizes of which there are segments. Raises: OSError."""
        names = [entry.name for entry in os.scandir(self.root)]
        sizes = [n.removeprefix(_CLASS_PREFIX) for n in names if n.startswith(_CLASS_PREFIX)]
        return sorted(int(size) for size in sizes if size.isdecimal())

    def allocated_bytes(self) -> int:
        """Size of all data files. Raises: OSError."""
        total = 0
        for slot_bytes in self.slot_sizes():
            for entry in os.scandir(self.class_path(slot_bytes)):
                if entry.name.endswith(DATA_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat().st_size
        return total

    def remove_orphans(self) -> None:
        """Data files whose writer died before their index file was there. Needs the lock."""
        for slot_bytes in self.slot_sizes():
            for path in self.class_path(slot_bytes).glob(f"*{DATA_SUFFIX}"):
                if not path.with_suffix(INDEX_SUFFIX).exists():
                    path.unlink(missing_ok=True)

    def name_fingerprint(self, fingerprint: str) -> None:
        """Remember what its digest stands for, for people and for kvmeta. Raises: OSError."""
        digest = fingerprint_digest(fingerprint)
        if digest in self._names or fingerprint == unnamed(digest):
            return
        path = self.root / "fingerprints" / digest.hex()
        if not path.exists():
            fresh = path.with_suffix(f".{secrets.token_hex(4)}")
            fresh.write_text(fingerprint)
            fresh.rename(path)
        self._names[digest] = fingerprint

    def fingerprint_of(self, digest: bytes) -> str:
        """`unnamed` when it is not known."""
        if digest not in self._names:
            try:
                self._names[digest] = (self.root / "fingerprints" / digest.hex()).read_text()
            except (OSError, ValueError):
                return unnamed(digest)
        return self._names[digest]

    def _read_identity(self) -> bytes | None:
        """None when there is no store, or one that is of no use. Raises: OSError, also for a store
        of a later version: nothing of it may be touched."""
        try:
            facts = json.loads((self.root / _IDENTITY).read_text())
            version, store_id = int(facts["version"]), bytes.fromhex(facts["store_id"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        if version > _VERSION:
            raise OSError(f"{self.root} is a block store of version {version}; need {_VERSION}")
        return store_id if version == _VERSION else None

    def _begin(self) -> bytes:
        """A new, empty store; what an older format left is removed."""
        old = list(self.root.glob(f"{_CLASS_PREFIX}*"))
        if (self.root / _OLD_MARK).exists():  # without it these names may be anybody's
            old += [path for path in self.root.iterdir() if _OLD_NAMES.fullmatch(path.name)]
        for path in old:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if old:
            log.warning("blocks of another format or store were removed", extra={"num": len(old)})
        store_id = secrets.token_bytes(16)
        facts = {"version": _VERSION, "store_id": store_id.hex()}
        fresh = self.root / f"{_IDENTITY}.new"
        fresh.write_text(json.dumps(facts) + "\n")
        fresh.rename(self.root / _IDENTITY)
        return store_id


def _lock_within(fd: int, wait_s: float) -> bool:
    give_up = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_LOCK_POLL_S)
        except OSError:
            return False
