"""Blocks in a Redis or Valkey server: for sites that have one with much memory.

The server bounds its own size (`maxmemory` with an `lru` or `lfu` policy) and expires blocks. Each
value is a record like those of segment files, verified at every read.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import redis

from rorqual_runtime.blockstore.backend import (
    BlockListing,
    BlockMark,
    ForgottenBlock,
    OnForgotten,
    Provenance,
    StoreStats,
)
from rorqual_runtime.blockstore.record import (
    NOWHERE,
    PACKED_BYTES,
    BadRecord,
    BlockName,
    RecordHeader,
    digest_of,
    fingerprint_digest,
    is_named,
    unnamed,
    verify,
)
from rorqual_runtime.clock import Clock, WallClock
from rorqual_runtime.logs import get_logger

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PREFIX = b"rqblock:"
_NAME_PREFIX = b"rqname:"
_TIMEOUT_S = 1.0
_REST_S = 1.0
_BATCH_BYTES = 16 << 20
_SCAN_COUNT = 500
_PLAIN = BlockMark()
T = TypeVar("T")

log = get_logger(__name__)


class RedisBlockStore:
    """`BlockStoreBackend` over one server. Safe for threads and processes.

    A server that is away costs one timeout; then all calls are misses and failed puts for a second,
    until it is tried again.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        on_forgotten: OnForgotten | None = None,
        max_connections: int = 8,
    ) -> None:
        """Connects at the first use. on_forgotten hears of damaged blocks: of others the server
        alone knows. Raises: ValueError for a malformed URL."""
        self._clock = clock or WallClock()
        self._on_forgotten = on_forgotten
        pool = redis.BlockingConnectionPool.from_url(
            f"redis{url.removeprefix('valkey')}" if url.startswith("valkey") else url,
            max_connections=max_connections,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            decode_responses=False,
        )
        self._client = redis.Redis(connection_pool=pool)
        self._identity = fingerprint_digest(_place_of(pool.connection_kwargs)).hex()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._away_until_s = -math.inf

    def get(self, fingerprint: str, key: bytes, into: Buffer, *, is_use: bool = True) -> bool:
        return self.get_many(fingerprint, [(key, into)])[0]

    def get_many(
        self, fingerprint: str, wanted: Sequence[tuple[bytes, Buffer]], *, is_use: bool = True
    ) -> list[bool]:
        """The server counts every read as a use."""
        hits: list[bool] = []
        targets = [(BlockName.of(fingerprint, k), memoryview(into).cast("B")) for k, into in wanted]
        for batch in _batches(targets):
            keys = [_key_of(name) for name, _ in batch]
            raws = self._call(partial(self._client.mget, keys), [None] * len(batch))
            pairs = zip(batch, raws, strict=True)
            hits += [self._take(fingerprint, name, into, raw) for (name, into), raw in pairs]
        return hits

    def put(
        self,
        fingerprint: str,
        key: bytes,
        data: Buffer,
        *,
        ttl_s: float | None = None,
        mark: BlockMark = _PLAIN,
    ) -> bool:
        return self.put_many(fingerprint, [(key, data)], ttl_s=ttl_s, mark=mark)[0]

    def put_many(
        self,
        fingerprint: str,
        blocks: Sequence[tuple[bytes, Buffer]],
        *,
        ttl_s: float | None = None,
        mark: BlockMark = _PLAIN,
    ) -> list[bool]:
        outcomes: list[str] = []
        payloads = [
            (BlockName.of(fingerprint, k), memoryview(data).cast("B")) for k, data in blocks
        ]
        for batch in _batches(payloads):
            records = [
                (name, self._record(name, payload, ttl_s, mark._replace(depth=mark.depth + index)))
                for index, (name, payload) in enumerate(batch, start=len(outcomes))
            ]
            outcomes += self._call(
                partial(self._store, fingerprint, records, ttl_s, mark),
                ["put_failures"] * len(records),
            )
        for outcome in outcomes:
            self._count(outcome)
        return [outcome != "put_failures" for outcome in outcomes]

    def has(self, fingerprint: str, key: bytes) -> bool:
        name = BlockName.of(fingerprint, key)
        return bool(self._call(lambda: self._client.exists(_key_of(name)), 0))

    def num_stored(self, fingerprint: str, keys: Sequence[bytes], *, num_exact: int = 0) -> int:
        """How many blocks are there before the first that is not; one round trip a few hundred. Of
        the first num_exact only exact ones count."""
        for start in range(0, len(keys), _SCAN_COUNT):
            names = [BlockName.of(fingerprint, key) for key in keys[start : start + _SCAN_COUNT]]
            found: list[bool] = self._call(
                partial(self._exist, names, max(0, num_exact - start)), [False]
            )
            if not all(found):
                return start + found.index(False)
        return len(keys)

    def hold(self, fingerprint: str, keys: Sequence[bytes], until_unix_s: float) -> None:
        """Counts as a use: the server knows no more of it."""
        names = [_key_of(BlockName.of(fingerprint, key)) for key in keys]
        if names:
            self._call(lambda: self._client.touch(*names), 0)

    def delete(self, fingerprint: str, key: bytes) -> bool:
        name = BlockName.of(fingerprint, key)
        return bool(self._call(lambda: self._client.unlink(_key_of(name)), 0))

    def listing(self) -> Iterator[BlockListing]:
        names: dict[bytes, str] = {}
        for keys in self._scanned():
            for raw in self._call(partial(self._headers, keys), []):
                with contextlib.suppress(BadRecord):
                    header = RecordHeader.parse(raw)
                    digest = header.name.fingerprint
                    if digest not in names:
                        names[digest] = self._name_of(digest)
                    yield _listed(header, names[digest])

    def maintain(self, *, everything: bool = False) -> None:
        """Nothing to do: the server looks after itself."""

    @property
    def identity(self) -> str:
        return self._identity

    def is_reachable(self) -> bool:
        return bool(self._call(self._client.ping, False))

    def stats(self) -> StoreStats:
        """Sizes are the server's; num_blocks is found by going through all its keys."""
        memory: dict[str, Any] = self._call(lambda: self._client.info("memory"), {})
        with self._lock:
            counts = dict(self._counts)
        return StoreStats(
            hits=counts.get("hits", 0),
            misses=counts.get("misses", 0),
            corrupt=counts.get("corrupt", 0),
            expired=0,
            puts=counts.get("puts", 0),
            duplicates=counts.get("duplicates", 0),
            put_failures=counts.get("put_failures", 0),
            evicted=0,
            num_bytes=int(memory.get("used_memory", 0)),
            num_blocks=sum(len(keys) for keys in self._scanned()),
            allocated_bytes=int(memory.get("used_memory_rss", 0)),
            capacity_bytes=int(memory.get("maxmemory", 0)),
        )

    def close(self) -> None:
        self._client.close()

    def _take(self, fingerprint: str, name: BlockName, into: memoryview, raw: bytes | None) -> bool:
        """Copy a verified record's payload; a bad record is deleted."""
        if raw is None:
            self._count("misses")
            return False
        view = memoryview(raw)
        try:
            verify(view[:PACKED_BYTES], view[PACKED_BYTES:], name, NOWHERE)
            if view.nbytes - PACKED_BYTES != into.nbytes:
                raise BadRecord("wrong length")
        except BadRecord:
            self._count("corrupt")
            self._count("misses")
            self._call(lambda: self._client.unlink(_key_of(name)), 0)
            if self._on_forgotten is not None:
                self._on_forgotten([ForgottenBlock(fingerprint, name.key, "corrupt")])
            return False
        into[:] = view[PACKED_BYTES:]
        self._count("hits")
        return True

    def _record(
        self, name: BlockName, payload: memoryview, ttl_s: float | None, mark: BlockMark
    ) -> bytes:
        now_unix_s = self._clock.now_unix_s()
        expires_unix_s = None if ttl_s is None else now_unix_s + ttl_s
        header = RecordHeader(
            name, NOWHERE, payload.nbytes, now_unix_s, expires_unix_s, mark, digest_of(payload)
        )
        return b"".join([header.pack(), payload])

    def _store(
        self,
        fingerprint: str,
        records: list[tuple[BlockName, bytes]],
        ttl_s: float | None,
        mark: BlockMark,
    ) -> list[str]:
        """Which count each adds to. Only an exact block takes the place of one that is there."""
        pipe = self._client.pipeline(transaction=False)
        lifetime_ms = None if ttl_s is None else max(1, int(ttl_s * 1e3))
        is_new_only = mark.provenance is not Provenance.EXACT
        for name, record in records:
            pipe.set(_key_of(name), record, px=lifetime_ms, nx=is_new_only)
        if is_named(fingerprint):  # each time: the server may have evicted it
            pipe.set(_name_key(records[0][0].fingerprint), fingerprint)
        replies = pipe.execute(raise_on_error=False)[: len(records)]
        return [_outcome(reply) for reply in replies]

    def _scanned(self) -> Iterator[list[bytes]]:
        cursor = 0
        while True:
            cursor, keys = self._call(
                partial(self._client.scan, cursor, match=_PREFIX + b"*", count=_SCAN_COUNT),
                (0, []),
            )
            yield keys
            if not cursor:
                return

    def _exist(self, names: list[BlockName], num_exact: int) -> list[bool]:
        pipe = self._client.pipeline(transaction=False)
        for name in names[:num_exact]:
            pipe.getrange(_key_of(name), 0, PACKED_BYTES - 1)
        for name in names[num_exact:]:
            pipe.exists(_key_of(name))
        answers: list[Any] = pipe.execute()
        return [*map(_may_be_exact, answers[:num_exact]), *map(bool, answers[num_exact:])]

    def _headers(self, keys: list[bytes]) -> list[bytes]:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.getrange(key, 0, PACKED_BYTES - 1)
        return [raw for raw in pipe.execute(raise_on_error=False) if isinstance(raw, bytes)]

    def _name_of(self, digest: bytes) -> str:
        name = self._call(lambda: self._client.get(_name_key(digest)), None)
        return name.decode(errors="replace") if name else unnamed(digest)

    def _call(self, call: Callable[[], Any], otherwise: T) -> Any:
        """What the server answers, or `otherwise` while it is away."""
        if self._clock.monotonic_s() < self._away_until_s:
            return otherwise
        try:
            return call()
        except redis.RedisError as error:
            self._away_until_s = self._clock.monotonic_s() + _REST_S
            log.warning("the block server is away", extra={"error": str(error)})
            return otherwise

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number


def _place_of(connection: Mapping[str, Any]) -> str:
    """Which server and database, and not who signs in there: others hear a digest of it."""
    server = (
        connection.get("path")
        or f"{connection.get('host', 'localhost')}:{connection.get('port', 6379)}"
    )
    return f"{server}/{connection.get('db', 0)}"


def _outcome(reply: Any) -> str:
    """Which count a SET adds to; None is what NX says of a key that is there."""
    if reply is None:
        return "duplicates"
    return "puts" if reply is True else "put_failures"


def _may_be_exact(raw: bytes) -> bool:
    """Of the beginning of a record. A damaged one is there, too: who reads it removes it."""
    try:
        return bool(raw) and RecordHeader.parse(raw).mark.provenance is Provenance.EXACT
    except BadRecord:
        return True


def _listed(header: RecordHeader, fingerprint: str) -> BlockListing:
    return BlockListing(
        fingerprint,
        header.name.key,
        header.num_payload_bytes,
        header.created_unix_s,
        header.expires_unix_s,
        header.created_unix_s,
        0,
        header.mark,
    )


def _name_key(digest: bytes) -> bytes:
    return _NAME_PREFIX + digest.hex().encode()


def _key_of(name: BlockName) -> bytes:
    return b"%s%s:%s" % (_PREFIX, name.fingerprint.hex().encode(), name.key.hex().encode())


def _batches(
    blocks: Sequence[tuple[BlockName, memoryview]],
) -> Iterator[list[tuple[BlockName, memoryview]]]:
    """Runs of blocks of at most 16 MiB, each of one block at least."""
    batch: list[tuple[BlockName, memoryview]] = []
    for block in blocks:
        if batch and sum(view.nbytes for _, view in (*batch, block)) > _BATCH_BYTES:
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch
