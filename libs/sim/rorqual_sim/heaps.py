"""Priority queues over numbered jobs: skew heaps that share one pair of link arrays.

A job is in one heap at most; a heap is the number of its first job, or NONE. Smaller keys come
first, of equal ones the smaller number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rorqual_sim.compiled import compiled

NONE = -1


@compiled
def merge(
    a: int, b: int, key: NDArray[np.float64], left: NDArray[np.int32], right: NDArray[np.int32]
) -> int:
    """The heap of all jobs of two heaps."""
    if a < 0:
        return b
    if b < 0:
        return a
    if key[b] < key[a] or (key[b] == key[a] and b < a):
        a, b = b, a
    root = a
    while True:
        below = right[a]
        right[a] = left[a]
        if below < 0:
            left[a] = b
            return root
        if key[b] < key[below] or (key[b] == key[below] and b < below):
            below, b = b, below
        left[a] = below
        a = below


@compiled
def push(
    root: int, job: int, key: NDArray[np.float64], left: NDArray[np.int32], right: NDArray[np.int32]
) -> int:
    """The heap with one more job."""
    left[job] = -1
    right[job] = -1
    return merge(root, job, key, left, right)


@compiled
def pop(
    root: int, key: NDArray[np.float64], left: NDArray[np.int32], right: NDArray[np.int32]
) -> int:
    """The heap without its first job."""
    return merge(left[root], right[root], key, left, right)
