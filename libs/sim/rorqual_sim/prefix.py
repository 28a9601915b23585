"""What a prefix store and kept windows would have given the requests of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rorqual_sim.compiled import compiled
from rorqual_sim.traces import Trace

NEVER = np.inf


@dataclass(frozen=True)
class PrefixHits:
    """Hits of every request, one row a store lifetime."""

    hit_tokens: NDArray[np.int64]
    """[lifetimes, requests] leading tokens that the store had."""
    window_gap_s: NDArray[np.float64]
    """[requests] seconds since the window behind the longest match (no lifetime) was last made or
    read; infinity without a match."""
    is_matched: NDArray[np.bool_]
    """[requests] whether anything that this trace computed was matched."""


def prefix_hits(
    trace: Trace, lifetimes_s: tuple[float, ...], page_tokens: int | None = None
) -> PrefixHits:
    """Replay the trace through a shared store of unlimited size, once for each lifetime.

    A page lives for the lifetime since it was last computed or matched. page_tokens: a multiple of
    the trace's own blocks, those by default.

    Raises: ValueError for page_tokens that are no multiple of the trace's blocks.
    """
    page_tokens = page_tokens or trace.block_tokens
    if page_tokens % trace.block_tokens:
        raise ValueError(f"pages of {page_tokens} tokens, blocks of {trace.block_tokens}")
    start, nodes, num_nodes = page_nodes(trace, page_tokens)
    num_pages, gap_s = _replay(
        trace.arrival_s, start, nodes, num_nodes, np.array(lifetimes_s, np.float64)
    )
    hit_tokens = np.minimum(num_pages * page_tokens, trace.input_tokens)
    warm = trace.warm_tokens // page_tokens * page_tokens
    hit_tokens = np.maximum(hit_tokens, np.minimum(warm, trace.input_tokens))
    return PrefixHits(hit_tokens, gap_s, np.isfinite(gap_s))


def page_nodes(trace: Trace, page_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Each request's pages as nodes of the tree of prefixes: (start, nodes, number of nodes).

    Two requests have a node in common exactly where their prompts are equal up to its end.
    """
    group = page_tokens // trace.block_tokens
    counts = np.diff(trace.block_start) // group
    start = np.concatenate([[0], np.cumsum(counts)])
    nodes, num_nodes = _tree(trace.block_start, trace.block_ids, start, group)
    return start, nodes, num_nodes


@compiled
def _tree(
    block_start: NDArray[np.int64],
    block_ids: NDArray[np.int32],
    page_start: NDArray[np.int64],
    group: int,
) -> tuple[NDArray[np.int32], int]:
    """An id is its own node as long as it always follows the same one, as chained ids do; else
    (parent, id) gets a node of its own."""
    num_ids = 1
    for index in range(len(block_ids)):
        num_ids = max(num_ids, block_ids[index] + 1)
    parent_of = np.full(num_ids, -2, np.int64)
    others = {(np.int64(-1), np.int64(-1)): np.int64(-1)}
    next_node = num_ids
    nodes = np.empty(page_start[-1], np.int32)
    for request in range(len(page_start) - 1):
        parent = np.int64(-1)
        out = page_start[request]
        num_blocks = (page_start[request + 1] - out) * group
        begin = block_start[request]
        for offset in range(num_blocks):
            block = np.int64(block_ids[begin + offset])
            if parent_of[block] == -2:
                parent_of[block] = parent
            if parent_of[block] == parent:
                parent = block
            elif (parent, block) in others:
                parent = others[(parent, block)]
            else:
                others[(parent, block)] = np.int64(next_node)
                parent = np.int64(next_node)
                next_node += 1
            if offset % group == group - 1:
                nodes[out] = parent
                out += 1
    return nodes, next_node


@compiled
def _replay(
    arrival_s: NDArray[np.float64],
    start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    num_nodes: int,
    lifetimes_s: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A touch of a page touches those before it, so ages grow along a prompt: one pass serves all
    lifetimes."""
    num_requests = len(arrival_s)
    touched_s = np.full(num_nodes, -np.inf)
    window_s = np.full(num_nodes, -np.inf)
    hits = np.zeros((len(lifetimes_s), num_requests), np.int64)
    gap_s = np.full(num_requests, np.inf)
    for request in range(num_requests):
        now_s = arrival_s[request]
        first, last = start[request], start[request + 1]
        matched = first
        while matched < last and touched_s[nodes[matched]] > -np.inf:
            matched += 1
        for row in range(len(lifetimes_s)):
            end = first
            while end < matched and now_s - touched_s[nodes[end]] <= lifetimes_s[row]:
                end += 1
            hits[row, request] = end - first
        if matched > first:
            gap_s[request] = now_s - window_s[nodes[matched - 1]]
            window_s[nodes[matched - 1]] = now_s
        for index in range(first, last):
            touched_s[nodes[index]] = now_s
        for index in range(matched, last):
            window_s[nodes[index]] = now_s
    return hits, gap_s
