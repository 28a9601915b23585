"""The inner product of attention, register-blocked: a tile of rows against one page.

Per row the sequence of fused multiply-adds is the same whatever the tile's height, so a decode
row and the same row inside a prefill tile agree in every bit.
"""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rorqual_engine.kernels import simd
from rorqual_engine.kernels.simd import LANES

TILE_ROWS = 6
TILE_VECTORS = 4
"""6 x 4 accumulators of 16 lanes, 4 vectors and their conversion fit 32 vector registers."""

_I64 = ir.IntType(64)
_F32 = ir.FloatType()
_VEC = ir.VectorType(_F32, LANES)


@intrinsic
def tile_fma(
    typingctx,
    scalars,
    scalar_stride,
    vectors,
    vector_stride,
    depth,
    results,
    result_stride,
    num_rows,
    num_vectors,
):
    """results[r, c] += sum over i < depth, in order, of scalars[r, i] * vectors[i, c].

    scalars: fp32 [num_rows, >= depth], rows scalar_stride apart; num_rows in 1..TILE_ROWS
    vectors: bf16 [depth, 16 * num_vectors], rows vector_stride apart
    results: fp32 [num_rows, 16 * num_vectors], rows result_stride apart
    """

    def codegen(context, builder, signature, args):
        grid = _Grid(builder, *args[:7])
        _for_each_height(builder, args[7], lambda rows: _emit_columns(grid, rows, args[8]))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 9), codegen


class _Grid:
    """Emits one block of accumulators for the operands of one call."""

    def __init__(self, builder: Any, *operands: Any) -> None:
        self.builder = builder
        (self.scalars, self.scalar_stride, self.vectors, self.vector_stride,
         self.depth, self.results, self.result_stride) = operands  # fmt: skip

    def emit(self, rows: int, width: int, column: Any) -> None:
        """rows x width accumulators, from the given column on."""
        places = [self._place(r, v, column) for r in range(rows) for v in range(width)]
        start = [self._load(place) for place in places]
        sums = _accumulate(
            self.builder, start, self.depth, lambda i, s: self._step(i, s, rows, width, column)
        )
        for place, value in zip(places, sums, strict=True):
            self.builder.store(value, place).align = 4

    def _place(self, row: int, vector: int, column: Any) -> Any:
        at = self.builder.add(self.builder.mul(self.result_stride, _int(row)), column)
        at = self.builder.add(at, _int(vector * LANES))
        pointer = simd.pointer_to(self.builder, self.results, at, _F32)
        return self.builder.bitcast(pointer, _VEC.as_pointer())

    def _load(self, place: Any) -> Any:
        load = self.builder.load(place)
        load.align = 4
        return load

    def _step(self, i: Any, sums: list[Any], rows: int, width: int, column: Any) -> list[Any]:
        builder = self.builder
        at = builder.add(builder.mul(i, self.vector_stride), column)
        vectors = [
            simd.load_widened(builder, self.vectors, builder.add(at, _int(v * LANES)))
            for v in range(width)
        ]
        after = []
        for r in range(rows):
            place = builder.add(builder.mul(self.scalar_stride, _int(r)), i)
            scalar = builder.load(simd.pointer_to(builder, self.scalars, place, _F32))
            factor = simd.broadcast(builder, scalar, _VEC)
            after += [
                simd.call_fma(builder, factor, vectors[v], sums[r * width + v])
                for v in range(width)
            ]
        return after


def _accumulate(builder: Any, start: list[Any], depth: Any, step: Any) -> list[Any]:
    """A loop over 0 <= i < depth (depth >= 1) whose accumulators stay in registers."""
    before = builder.block
    body, done = builder.append_basic_block("fma"), builder.append_basic_block("fma_done")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(_I64)
    phis = [builder.phi(_VEC) for _ in start]
    after: list[Any] = step(index, list(phis))
    following = builder.add(index, _int(1))
    builder.cbranch(builder.icmp_signed("<", following, depth), body, done)
    for phi, first, last in zip(
        [index, *phis], [_int(0), *start], [following, *after], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(last, body)
    builder.position_at_end(done)
    return after


def _emit_columns(grid: _Grid, rows: int, num_vectors: Any) -> None:
    """All columns: blocks of TILE_VECTORS, then single vectors."""
    builder = grid.builder
    blocks = builder.sdiv(num_vectors, _int(TILE_VECTORS))
    with cgutils.for_range(builder, blocks) as loop:
        grid.emit(rows, TILE_VECTORS, builder.mul(loop.index, _int(TILE_VECTORS * LANES)))
    covered = builder.mul(blocks, _int(TILE_VECTORS))
    with cgutils.for_range(builder, builder.sub(num_vectors, covered)) as loop:
        vector = builder.add(covered, loop.index)
        grid.emit(rows, 1, builder.mul(vector, _int(LANES)))


def _for_each_height(builder: Any, num_rows: Any, emit: Any) -> None:
    """A switch over num_rows with one specialised body for every height."""
    end = builder.append_basic_block("height_done")
    switch = builder.switch(num_rows, end)
    for rows in range(1, TILE_ROWS + 1):
        block = builder.append_basic_block(f"height{rows}")
        switch.add_case(_int(rows), block)
        builder.position_at_end(block)
        emit(rows)
        builder.branch(end)
    builder.position_at_end(end)


def _int(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)
