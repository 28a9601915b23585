"""One product a group: rows of every group against that group's matrix.

The kernel is a C function of the address of an int64 argument block, as in rows.py; no row sees
another.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from numba import njit, types

from rorqual_engine.kernels.deepseek_attention import round_row, widen_row
from rorqual_engine.kernels.simd import LANES, fetch_add, load_i64, splat, vstore
from rorqual_engine.kernels.tiles import TILE_ROWS, tile_fma

NEXT, NUM_ITEMS, ROWS, GROUPS, WIDTH, OUT_WIDTH, X, MATRICES, TARGET = range(9)
NUM_GROUPED_SLOTS = 9


@njit
def _run_item(args, group, first, count, x, results):
    width, out_width = load_i64(args, WIDTH), load_i64(args, OUT_WIDTH)
    source = load_i64(args, X) + 2 * width * (group * load_i64(args, ROWS) + first)
    widen_row(source, x, count * width)
    zero = splat(types.float32(0.0))
    for at in range(0, count * out_width, LANES):
        vstore(results, at, zero)
    matrix = load_i64(args, MATRICES) + 2 * width * out_width * group
    tile_fma(x, width, matrix, out_width, width, results, out_width, count, out_width // LANES)
    target = load_i64(args, TARGET)
    for r in range(count):
        place = (first + r) * load_i64(args, GROUPS) + group
        round_row(results + 4 * out_width * r, target + 2 * out_width * place, out_width)


def grouped_rows(args):
    """X bf16 [GROUPS, ROWS, WIDTH], MATRICES bf16 [GROUPS, WIDTH, OUT_WIDTH] -> TARGET bf16 [ROWS,
    GROUPS, OUT_WIDTH]. Items: tiles of rows, group after group."""
    x = np.empty(TILE_ROWS * load_i64(args, WIDTH), np.float32)
    results = np.empty(TILE_ROWS * load_i64(args, OUT_WIDTH), np.float32)
    num_rows = load_i64(args, ROWS)
    tiles = (num_rows + TILE_ROWS - 1) // TILE_ROWS
    while True:
        item = fetch_add(args, 1)
        if item >= load_i64(args, NUM_ITEMS):
            break
        first = item % tiles * TILE_ROWS
        count = min(TILE_ROWS, num_rows - first)
        _run_item(args, item // tiles, first, count, x.ctypes.data, results.ctypes.data)
