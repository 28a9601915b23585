"""Explicit 16-lane fp32 vectors and raw memory for numba kernels.

Every operation is one IEEE operation per lane, sums over lanes go through one fixed tree, and
products are fused only where fma() says so. So a kernel's result is defined by its source, not
by what a compiler finds profitable: that is what makes rows independent of the batch.
Addresses are int64; offsets are in elements.
"""

# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic

LANES = 16
_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_VEC, _IVEC, _HVEC = (ir.VectorType(t, LANES) for t in (_F32, _I32, _I16))


class F32x16Type(types.Type):
    """numba's name for a vector of 16 fp32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="F32x16")


f32x16 = F32x16Type()


@register_default(F32x16Type)
class _F32x16Model(PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VEC)


def pointer_to(builder: Any, address: Any, offset: Any, element: ir.Type) -> Any:
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [offset])


def _splat_constant(value: float, element: ir.Type) -> ir.Constant:
    lanes = [ir.Constant(element, value)] * LANES
    return ir.Constant(ir.VectorType(element, LANES), lanes)


def broadcast(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    empty = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(_I32, 0))
    zeros = ir.Constant(ir.VectorType(_I32, LANES), [ir.Constant(_I32, 0)] * LANES)
    return builder.shuffle_vector(first, empty, zeros)


def widen(builder: Any, halves: Any, lanes: int = LANES) -> Any:
    """bf16 bits (as i16 lanes) to fp32 lanes, exactly."""
    wide = builder.zext(halves, ir.VectorType(_I32, lanes))
    shift = ir.Constant(ir.VectorType(_I32, lanes), [ir.Constant(_I32, 16)] * lanes)
    return builder.bitcast(builder.shl(wide, shift), ir.VectorType(_F32, lanes))


def narrow(builder: Any, value: Any) -> Any:
    """fp32 lanes to bf16 bits, to nearest even; a NaN stays one."""
    bits = builder.bitcast(value, _IVEC)
    odd = builder.and_(builder.lshr(bits, _splat_constant(16, _I32)), _splat_constant(1, _I32))
    rounded = builder.add(builder.add(bits, odd), _splat_constant(0x7FFF, _I32))
    is_nan = builder.fcmp_unordered("uno", value, value)
    kept = builder.select(is_nan, _splat_constant(0x7FC00000, _I32), rounded)
    return builder.trunc(builder.lshr(kept, _splat_constant(16, _I32)), _HVEC)


def call_fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding."""
    name = "llvm.fma." + ("f32" if a.type == _F32 else f"v{a.type.count}f32")
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(a.type, [a.type] * 3), name
    )
    return builder.call(function, [a, b, c])


def load_widened(builder: Any, address: Any, offset: Any) -> Any:
    """16 bf16 from memory as fp32 lanes."""
    pointer = pointer_to(builder, address, offset, _I16)
    load = builder.load(builder.bitcast(pointer, _HVEC.as_pointer()))
    load.align = 2
    return widen(builder, load)


@intrinsic
def load_i64(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        return builder.load(pointer_to(builder, args[0], args[1], _I64))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_i32(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        value = builder.load(pointer_to(builder, args[0], args[1], _I32))
        return builder.sext(value, _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_f32(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        return builder.load(pointer_to(builder, args[0], args[1], _F32))

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def load_bf16(typingctx, address, offset):
    """As fp32."""

    def codegen(context, builder, signature, args):
        half = builder.load(pointer_to(builder, args[0], args[1], _I16))
        bits = builder.shl(builder.zext(half, _I32), ir.Constant(_I32, 16))
        return builder.bitcast(bits, _F32)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def load_f64(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        return builder.load(pointer_to(builder, args[0], args[1], ir.DoubleType()))

    return types.float64(types.int64, types.int64), codegen


@intrinsic
def store_f32(typingctx, address, offset, value):
    def codegen(context, builder, signature, args):
        builder.store(args[2], pointer_to(builder, args[0], args[1], _F32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


@intrinsic
def store_f64(typingctx, address, offset, value):
    def codegen(context, builder, signature, args):
        builder.store(args[2], pointer_to(builder, args[0], args[1], ir.DoubleType()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64), codegen


@intrinsic
def store_i64(typingctx, address, offset, value):
    def codegen(context, builder, signature, args):
        builder.store(args[2], pointer_to(builder, args[0], args[1], _I64))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def store_i32(typingctx, address, offset, value):
    def codegen(context, builder, signature, args):
        value = builder.trunc(args[2], _I32)
        builder.store(value, pointer_to(builder, args[0], args[1], _I32))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_bf16(typingctx, target, target_offset, source, source_offset):
    """One bf16 from source to target."""

    def codegen(context, builder, signature, args):
        value = builder.load(pointer_to(builder, args[2], args[3], _I16))
        builder.store(value, pointer_to(builder, args[0], args[1], _I16))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def fetch_add(typingctx, address, amount):
    """Adds to an int64 in memory, atomically; returns what was there."""

    def codegen(context, builder, signature, args):
        target = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", target, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def vload(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        pointer = pointer_to(builder, args[0], args[1], _F32)
        load = builder.load(builder.bitcast(pointer, _VEC.as_pointer()))
        load.align = 4
        return load

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def vstore(typingctx, address, offset, value):
    def codegen(context, builder, signature, args):
        pointer = pointer_to(builder, args[0], args[1], _F32)
        builder.store(args[2], builder.bitcast(pointer, _VEC.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), codegen


@intrinsic
def vload_bf16(typingctx, address, offset):
    def codegen(context, builder, signature, args):
        return load_widened(builder, args[0], args[1])

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def vstore_bf16(typingctx, address, offset, value):
    """Rounds to nearest even."""

    def codegen(context, builder, signature, args):
        pointer = pointer_to(builder, args[0], args[1], _I16)
        store = builder.store(
            narrow(builder, args[2]), builder.bitcast(pointer, _HVEC.as_pointer())
        )
        store.align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), codegen


@intrinsic
def round_bf16(typingctx, value):
    """To the nearest bf16 and back to fp32."""

    def codegen(context, builder, signature, args):
        return widen(builder, narrow(builder, args[0]))

    return f32x16(f32x16), codegen


@intrinsic
def splat(typingctx, value):
    def codegen(context, builder, signature, args):
        return broadcast(builder, args[0], _VEC)

    return f32x16(types.float32), codegen


def _binary(instruction: str) -> Any:
    @intrinsic
    def operation(typingctx, a, b):
        def codegen(context, builder, signature, args):
            return getattr(builder, instruction)(args[0], args[1])

        return f32x16(f32x16, f32x16), codegen

    return operation


vadd, vsub, vmul, vdiv = (_binary(name) for name in ("fadd", "fsub", "fmul", "fdiv"))


@intrinsic
def vmax(typingctx, a, b):
    """The larger of each lane; a where they are equal. No NaN expected."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("oge", args[0], args[1]), args[0], args[1])

    return f32x16(f32x16, f32x16), codegen


@intrinsic
def fma(typingctx, a, b, c):
    """a * b + c with one rounding."""

    def codegen(context, builder, signature, args):
        return call_fma(builder, *args)

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def keep_below(typingctx, value, first_lane, limit, other):
    """value where first_lane + lane < limit, else other."""

    def codegen(context, builder, signature, args):
        value, first, limit, other = args
        lane = ir.Constant(ir.VectorType(_I64, LANES), [ir.Constant(_I64, i) for i in range(LANES)])
        room = broadcast(builder, builder.sub(limit, first), ir.VectorType(_I64, LANES))
        return builder.select(builder.icmp_signed("<", lane, room), value, other)

    return f32x16(f32x16, types.int64, types.int64, f32x16), codegen


@intrinsic
def keep_bits(typingctx, value, bits, first, other):
    """value where bit first + lane of the bit set at address `bits` is set, else other; first is a
    multiple of LANES."""

    def codegen(context, builder, signature, args):
        value, bits, first, other = args
        place = builder.sdiv(first, ir.Constant(_I64, LANES))
        word = builder.load(pointer_to(builder, bits, place, _I16))
        is_kept = builder.bitcast(word, ir.VectorType(ir.IntType(1), LANES))
        return builder.select(is_kept, value, other)

    return f32x16(f32x16, types.int64, types.int64, f32x16), codegen


@intrinsic
def keep_above(typingctx, value, key, limit, other):
    """value where key > limit, else other, lane by lane."""

    def codegen(context, builder, signature, args):
        value, key, limit, other = args
        return builder.select(builder.fcmp_ordered(">", key, limit), value, other)

    return f32x16(f32x16, f32x16, f32x16, f32x16), codegen


def _fold(builder: Any, vector: Any, combine: Any) -> Any:
    """Halves against halves: lanes 0-7 with 8-15, then 0-3 with 4-7, and so on."""
    width = LANES
    while width > 1:
        width //= 2
        index = ir.VectorType(_I32, width)
        low = ir.Constant(index, [ir.Constant(_I32, i) for i in range(width)])
        high = ir.Constant(index, [ir.Constant(_I32, i + width) for i in range(width)])
        empty = ir.Constant(vector.type, ir.Undefined)
        vector = combine(
            builder.shuffle_vector(vector, empty, low), builder.shuffle_vector(vector, empty, high)
        )
    return builder.extract_element(vector, ir.Constant(_I32, 0))


@intrinsic
def hsum(typingctx, value):
    """Sum of the lanes, by one fixed tree."""

    def codegen(context, builder, signature, args):
        return _fold(builder, args[0], builder.fadd)

    return types.float32(f32x16), codegen


def _fold_pair(builder: Any, a: Any, b: Any, width: int) -> Any:
    """Within groups of 2 * width lanes: the halves' sums, a's groups first, then b's."""
    groups = range(0, 2 * LANES, 2 * width)
    low = [first + i for first in groups for i in range(width)]
    high = [lane + width for lane in low]
    parts = [
        builder.shuffle_vector(a, b, ir.Constant(_IVEC, [ir.Constant(_I32, i) for i in lanes]))
        for lanes in (low, high)
    ]
    return builder.fadd(*parts)


@intrinsic
def store_sums(typingctx, address, offset, stride, a, b, c, d):
    """hsum of four vectors, bit for bit, to offset, offset + stride and so on, fp32."""

    def codegen(context, builder, signature, args):
        address, offset, stride, a, b, c, d = args
        first, second = _fold_pair(builder, a, b, 8), _fold_pair(builder, c, d, 8)
        sums = _fold_pair(builder, first, second, 4)
        sums = _fold_pair(builder, sums, sums, 2)
        sums = _fold_pair(builder, sums, sums, 1)
        for number in range(4):
            lane = builder.extract_element(sums, ir.Constant(_I32, number))
            place = builder.add(offset, builder.mul(stride, ir.Constant(_I64, number)))
            builder.store(lane, pointer_to(builder, address, place, _F32))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3, *[f32x16] * 4), codegen


@intrinsic
def hmax(typingctx, value):
    """Largest lane."""

    def codegen(context, builder, signature, args):
        def larger(a, b):
            return builder.select(builder.fcmp_ordered("oge", a, b), a, b)

        return _fold(builder, args[0], larger)

    return types.float32(f32x16), codegen


def _swapped(mask: int) -> Any:
    """Lane i becomes lane i ^ mask."""

    @intrinsic
    def operation(typingctx, value):
        def codegen(context, builder, signature, args):
            index = ir.Constant(_IVEC, [ir.Constant(_I32, i ^ mask) for i in range(LANES)])
            return builder.shuffle_vector(args[0], ir.Constant(_VEC, ir.Undefined), index)

        return f32x16(f32x16), codegen

    return operation


vswap1, vswap2, vswap4, vswap8 = (_swapped(mask) for mask in (1, 2, 4, 8))


@intrinsic
def _scale_by_power(typingctx, value, biased):
    """value * 2^n, where biased = n + 1.5 * 2^23 holds n in its low bits."""

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[1], _IVEC)
        exponent = builder.shl(bits, _splat_constant(23, _I32))
        one = builder.add(exponent, _splat_constant(0x3F800000, _I32))
        return builder.fmul(args[0], builder.bitcast(one, _VEC))

    return f32x16(f32x16, f32x16), codegen


@njit(inline="always")
def _c(value):
    return splat(types.float32(value))


@njit(inline="always")
def vexp(x):
    """e^x to about 1 ulp, exactly 1 at 0; x is clamped to [-87, 88] first."""
    x = vmax(x, _c(-87.0))
    x = vsub(_c(0.0), vmax(vsub(_c(0.0), x), _c(-88.0)))
    shifted = fma(x, _c(1.4426950408889634), _c(12582912.0))
    n = vsub(shifted, _c(12582912.0))
    r = fma(n, _c(-0.693145751953125), x)
    r = fma(n, _c(-1.428606765330187e-06), r)
    p = fma(r, _c(1.0 / 5040.0), _c(1.0 / 720.0))
    p = fma(p, r, _c(1.0 / 120.0))
    p = fma(p, r, _c(1.0 / 24.0))
    p = fma(p, r, _c(1.0 / 6.0))
    p = fma(p, r, _c(0.5))
    p = fma(p, r, _c(1.0))
    p = fma(p, r, _c(1.0))
    return _scale_by_power(p, shifted)
