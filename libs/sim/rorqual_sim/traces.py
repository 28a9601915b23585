"""Trace files: who asked what, when, and which blocks the prompt is made of."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

MOONCAKE_BLOCK_TOKENS = 512
SESSION_BLOCK_TOKENS = 64
_EPOCH = datetime(1970, 1, 1)


class TraceError(ValueError):
    """A trace file that can't be used: names the file, the line and what is wrong."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        self.path, self.line, self.problem = path, line, problem
        super().__init__(f"{path}:{line}: {problem}")


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, with the blocks of their prompts.

    Arrays have one entry a request. Blocks of request i are
    block_ids[block_start[i]:block_start[i + 1]]; equal ids at equal places after equal blocks mean
    equal content. A trace without block ids has none of them: nothing can be shared.
    """

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    session: NDArray[np.int64]
    """Requests of one session follow each other; -1 = not known to belong to any."""
    block_tokens: int
    block_start: NDArray[np.int64]
    block_ids: NDArray[np.int32]
    warm_tokens: NDArray[np.int64]
    """Leading tokens that others are taken to have computed before the trace began."""
    service_s: NDArray[np.float64]
    """Recorded seconds from request to response; 0 = not recorded."""
    tenant: NDArray[np.int64]
    is_relative: bool = False
    """Times count from the beginning of each session, not of the trace."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def has_blocks(self) -> bool:
        return len(self.block_ids) > 0


@dataclass(frozen=True)
class _Row:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: NDArray[np.int32]
    session: int = -1
    warm_tokens: int = 0
    service_s: float = 0.0
    tenant: int = 0
    line: int = 0
    """Of the file."""


_NO_BLOCKS = np.empty(0, np.int32)


def read_trace(path: Path) -> Trace:
    """The trace in any of the known formats, told apart by their content.

    Mooncake JSONL, session JSONL (plain or gzip), Azure CSV, and Rorqual's own JSONL, which is
    Mooncake's with `block_tokens`, `session` and `tenant` where they are known.

    Raises: TraceError, OSError.
    """
    with _open(path) as lines:
        first = next((line for line in lines if line.strip()), "")
    if not first:
        raise TraceError(path, 1, "the file is empty")
    if not first.lstrip().startswith("{"):
        return _azure(path)
    keys = _json(path, 1, first)
    if "reqs" in keys:
        return _sessions(path)
    return _mooncake(path)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _json(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise TraceError(path, number, f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise TraceError(path, number, "not a JSON object")
    return record


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with _open(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _json(path, number, line)


def _mooncake(path: Path) -> Trace:
    rows: list[_Row] = []
    sessions: dict[Any, int] = {}
    tenants: dict[Any, int] = {}
    block_tokens = MOONCAKE_BLOCK_TOKENS
    for number, record in _records(path):
        try:
            block_tokens = int(record.get("block_tokens", block_tokens))
            if block_tokens < 1 or min(record.get("hash_ids", ()), default=0) < 0:
                raise ValueError("needs block_tokens >= 1 and hash_ids >= 0")
            session, tenant = record.get("session"), record.get("tenant", "")
            rows.append(
                _Row(
                    arrival_s=float(record["timestamp"]) / 1e3,
                    input_tokens=int(record["input_length"]),
                    output_tokens=int(record["output_length"]),
                    blocks=np.array(record.get("hash_ids", ()), np.int32),
                    session=-1 if session is None else sessions.setdefault(session, len(sessions)),
                    tenant=tenants.setdefault(tenant, len(tenants)),
                    line=number,
                )
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(path, number, f"{type(error).__name__}: {error}") from None
    return _trace(path, rows, block_tokens)


def _azure(path: Path) -> Trace:
    rows: list[_Row] = []
    with _open(path) as lines:
        reader = csv.DictReader(lines)
        for record in reader:
            number = reader.line_num
            try:
                at_s = (datetime.fromisoformat(record["TIMESTAMP"][:26]) - _EPOCH).total_seconds()
                lengths = int(record["ContextTokens"]), int(record["GeneratedTokens"])
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise TraceError(path, number, f"{type(error).__name__}: {error}") from None
            rows.append(_Row(at_s, *lengths, _NO_BLOCKS, line=number))
    return _trace(path, rows, MOONCAKE_BLOCK_TOKENS)


WARM_SHARE = 0.75
"""Share of a session's tool and system prompt that other sessions have already computed.
Source: the convention of the tool that replays these sessions."""


def _sessions(path: Path) -> Trace:
    rows: list[_Row] = []
    first_free_id = 0
    for session, (number, record) in enumerate(_records(path)):
        try:
            warm = int(WARM_SHARE * (int(record["tool"]) + int(record["sys"])))
            requests = [
                replace(_session_row(fields, session, warm, first_free_id), line=number)
                for fields in record["reqs"]
            ]
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise TraceError(path, number, f"{type(error).__name__}: {error}") from None
        rows += requests
        ends = (int(row.blocks.max()) + 1 for row in requests if len(row.blocks))
        first_free_id = max(ends, default=first_free_id)
    return _trace(path, rows, SESSION_BLOCK_TOKENS, is_relative=True)


def _session_row(fields: list[Any], session: int, warm_tokens: int, offset: int) -> _Row:
    at_s, num_in, num_out, service_s, _think_s, runs = fields[:6]
    starts, lengths = np.array(runs[::2], np.int32), np.array(runs[1::2], np.int32)
    within = np.arange(lengths.sum(), dtype=np.int32) - np.repeat(
        np.cumsum(lengths, dtype=np.int32) - lengths, lengths
    )
    blocks = np.repeat(starts, lengths) + within + np.int32(offset)
    return _Row(
        float(at_s), int(num_in), int(num_out), blocks, session, warm_tokens, float(service_s)
    )


def _trace(path: Path, rows: list[_Row], block_tokens: int, *, is_relative: bool = False) -> Trace:
    if not rows:
        raise TraceError(path, 1, "no requests")
    for row in rows:
        if row.input_tokens < 0 or row.output_tokens < 0 or not np.isfinite(row.arrival_s):
            raise TraceError(path, row.line, "needs finite times and lengths >= 0")
    if not is_relative:
        rows.sort(key=lambda row: row.arrival_s)
    counts = np.array([len(row.blocks) for row in rows], np.int64)
    arrival_s = np.array([row.arrival_s for row in rows])
    return Trace(
        name=path.name.split(".")[0],
        arrival_s=arrival_s - (0.0 if is_relative else arrival_s[0]),
        input_tokens=np.array([max(1, row.input_tokens) for row in rows], np.int64),
        output_tokens=np.array([row.output_tokens for row in rows], np.int64),
        session=np.array([row.session for row in rows], np.int64),
        block_tokens=block_tokens,
        block_start=np.concatenate([[0], np.cumsum(counts)]),
        block_ids=np.concatenate([row.blocks for row in rows]) if counts.sum() else _NO_BLOCKS,
        warm_tokens=np.array([row.warm_tokens for row in rows], np.int64),
        service_s=np.array([row.service_s for row in rows]),
        tenant=np.array([row.tenant for row in rows], np.int64),
        is_relative=is_relative,
    )
