"""`rorqual kv`: look at the block store, check, clean and move it; safe beside a running fleet."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rorqual_policy import ValueEviction
from rorqual_runtime.blockstore import BlockListing, BlockStoreBackend, make_block_store
from rorqual_runtime.blockstore.archive import BadArchive, export_blocks, import_blocks

from rorqual_cli.problems import CliError

_DAY_S = 86_400.0


def run_kv(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises: CliError."""
    with _opened(options) as store:
        return _ACTIONS[options.action](store, options)


@contextlib.contextmanager
def _opened(options: argparse.Namespace) -> Iterator[BlockStoreBackend]:
    place: str | Path = options.store or options.home / "store"
    is_server = "://" in str(place)
    if not is_server and options.action != "import" and not (Path(place) / "STORE.json").exists():
        raise CliError(f"no block store in {place}", "name one with --store")
    capacity_bytes = max(getattr(options, "capacity", 1), 0 if is_server else _allocated(place))
    try:
        store = make_block_store(place, capacity_bytes, eviction=ValueEviction())
    except (OSError, ValueError) as error:
        raise CliError(f"the store {place} cannot be opened: {error}") from error
    try:
        if is_server and not store.is_reachable():
            raise CliError(f"the store {place} does not answer")
        yield store
    finally:
        store.close()


def _allocated(place: str | Path) -> int:
    """Bytes of the store's files: with less capacity it would be made smaller."""
    total = 0
    for path in Path(place).glob("slots-*/*.data"):
        with contextlib.suppress(FileNotFoundError):  # dropped just now
            total += path.stat().st_size
    return total


def _ls(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    listings = sorted(_chosen(store, options), key=lambda one: -one.last_used_unix_s)
    shown = listings[: options.limit] if options.limit > 0 else listings
    if options.json:
        for listing in shown:
            print(json.dumps(_as_json(listing)))
        return 0
    now_unix_s = time.time()
    print(f"{'key':32}  {'bytes':>9}  {'age':>7}  {'left':>7}  {'uses':>4}  kind      fingerprint")
    for listing in shown:
        left = "-" if listing.expires_unix_s is None else _span(listing.expires_unix_s - now_unix_s)
        print(
            f"{listing.key.hex()}  {listing.num_bytes:9}  "
            f"{_span(now_unix_s - listing.created_unix_s):>7}  {left:>7}  {listing.num_uses:4}  "
            f"{listing.mark.provenance.name.lower():8}  {listing.fingerprint}"
        )
    if len(shown) < len(listings):
        print(f"... and {len(listings) - len(shown)} more (--limit 0 shows all)")
    return 0


def _stat(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    listings = list(store.listing())
    now_unix_s = time.time()
    ends = [one.expires_unix_s for one in listings if one.expires_unix_s is not None]
    stats = store.stats()
    sums: dict[str, Any] = {
        "num_blocks": len(listings),
        "block_bytes": sum(listing.num_bytes for listing in listings),
        "allocated_bytes": stats.allocated_bytes,
        "num_expired": sum(end <= now_unix_s for end in ends),
        "num_expiring_in_a_day": sum(now_unix_s < end <= now_unix_s + _DAY_S for end in ends),
        "num_used": sum(listing.num_uses > 0 for listing in listings),
        "by_fingerprint": dict(Counter(one.fingerprint for one in listings)),
        "by_bytes": {str(size): n for size, n in Counter(b.num_bytes for b in listings).items()},
        "by_provenance": dict(Counter(one.mark.provenance.name.lower() for one in listings)),
        "by_lifetime": dict(Counter(one.mark.lifetime.name.lower() for one in listings)),
    }
    _say(sums, options)
    return 0


def _verify(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    """Exit code 1 when a block was damaged."""
    num_right = num_gone = 0
    for listing in _chosen(store, options):
        into = bytearray(listing.num_bytes)
        if store.get(listing.fingerprint, listing.key, into, is_use=False):
            num_right += 1
        else:
            num_gone += 1
    num_corrupt = store.stats().corrupt
    num_gone = max(0, num_gone - num_corrupt)
    _say({"num_right": num_right, "num_corrupt": num_corrupt, "num_gone": num_gone}, options)
    return 1 if num_corrupt else 0


def _gc(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    now_unix_s = time.time()
    is_narrowed = options.fingerprint is not None
    counts = Counter({"num_expired": 0, "num_removed": 0, "num_left": 0})
    for listing in _chosen(store, options):
        idle_s = now_unix_s - listing.last_used_unix_s
        is_expired = listing.expires_unix_s is not None and listing.expires_unix_s <= now_unix_s
        is_old = options.unused_days is not None and idle_s > options.unused_days * _DAY_S
        is_named = options.all or (is_narrowed and options.unused_days is None)
        if not (is_expired or is_old or is_named):
            counts["num_left"] += 1
        elif store.delete(listing.fingerprint, listing.key):
            counts["num_expired" if is_expired else "num_removed"] += 1
    store.maintain(everything=True)
    _say({**counts, "allocated_bytes": store.stats().allocated_bytes}, options)
    return 0


def _export(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    fresh = options.file.with_name(options.file.name + ".part")
    try:
        with fresh.open("wb") as file:
            num_written, num_lost = export_blocks(store, _chosen(store, options), file)
        fresh.rename(options.file)
    finally:
        fresh.unlink(missing_ok=True)
    _say({"num_written": num_written, "num_lost": num_lost}, options)
    return 0


def _import(store: BlockStoreBackend, options: argparse.Namespace) -> int:
    try:
        with options.file.open("rb") as file:
            counts = import_blocks(store, file, now_unix_s=time.time())
    except BadArchive as error:
        raise CliError(
            f"{options.file}: {error}", "the blocks before that are in the store"
        ) from error
    _say(
        {
            "num_kept": counts.num_kept,
            "num_expired": counts.num_expired,
            "num_refused": counts.num_refused,
        },
        options,
    )
    return 1 if counts.num_refused else 0


def _chosen(store: BlockStoreBackend, options: argparse.Namespace) -> Iterator[BlockListing]:
    for listing in store.listing():
        if options.fingerprint in (None, listing.fingerprint):
            yield listing


def _as_json(listing: BlockListing) -> dict[str, Any]:
    return {
        "fingerprint": listing.fingerprint,
        "key": listing.key.hex(),
        "num_bytes": listing.num_bytes,
        "created_unix_s": listing.created_unix_s,
        "expires_unix_s": listing.expires_unix_s,
        "last_used_unix_s": listing.last_used_unix_s,
        "num_uses": listing.num_uses,
        "provenance": listing.mark.provenance.name.lower(),
        "lifetime": listing.mark.lifetime.name.lower(),
        "depth": listing.mark.depth,
    }


def _say(facts: dict[str, Any], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        label = name.removeprefix("num_").replace("_", " ")
        if isinstance(value, dict):
            print(f"{label}:")
            for what, number in sorted(value.items()):
                print(f"  {what}: {number}")
        else:
            print(f"{label}: {value}")
    sys.stdout.flush()


def _span(seconds: float) -> str:
    """Whole units, the largest that fits: 3d, 5h, 12m, 40s; 0s for what is over."""
    for unit, size_s in (("d", _DAY_S), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size_s:
            return f"{int(seconds / size_s)}{unit}"
    return f"{max(0, int(seconds))}s"


_ACTIONS: dict[str, Callable[[BlockStoreBackend, argparse.Namespace], int]] = {
    "ls": _ls,
    "stat": _stat,
    "verify": _verify,
    "gc": _gc,
    "export": _export,
    "import": _import,
}
