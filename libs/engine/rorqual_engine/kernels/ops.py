"""The layer steps on compiled kernels: CPU, bf16, every row's bits fixed."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from rorqual_engine.batch import Batch, Int32Array
from rorqual_engine.kernels import attention, rows
from rorqual_engine.kernels.parallel import KernelCall
from rorqual_engine.kernels.simd import LANES
from rorqual_engine.kv import PAGE_TOKENS, PagedKvCache
from rorqual_engine.ops import AttentionShape
from rorqual_engine.rope import RopeTable

ITEM_ROWS = 32
"""Rows of a chunk in one attention work item."""
SERIAL_ROWS = 8
"""Row kernels over fewer rows are not worth waking a second thread."""


def supports(shape: AttentionShape, hidden: int, inner: int) -> bool:
    """Whether these sizes fit whole vectors."""
    return not (shape.head_dim % (2 * LANES) or hidden % LANES or inner % LANES)


class KernelOps:
    """LayerOps on compiled kernels."""

    def __init__(self, shape: AttentionShape, rope: RopeTable, eps: float) -> None:
        self.shape, self.rope, self.eps = shape, rope, eps
        self.add_norm, self.gate, self.attend, self.write = _compiled()

    def begin(self, batch: Batch, cache: PagedKvCache) -> KernelStep:
        return KernelStep(self, batch, cache)


class KernelStep:
    """StepOps on compiled kernels. Tensors are contiguous bf16."""

    def __init__(self, ops: KernelOps, batch: Batch, cache: PagedKvCache) -> None:
        self._ops, self._batch, self._cache = ops, batch, cache
        self._num_threads = torch.get_num_threads()
        self._norm_args = np.zeros(rows.NUM_SLOTS, dtype=np.int64)
        self._norm_args[rows.EPS_BITS] = round(ops.eps * 2.0**60)
        self._gate_args = np.zeros(rows.NUM_SLOTS, dtype=np.int64)
        self._items = _work_items(batch, ops.shape.num_kv_heads)
        self._attention_args = self._fill_attention_args()
        self._norm_at = self._norm_args.ctypes.data  # looking them up takes 1 us a call
        self._gate_at = self._gate_args.ctypes.data
        self._attention_at = self._attention_args.ctypes.data
        longest = int(np.diff(batch.row_starts).max())
        self._is_one_phase = longest <= ITEM_ROWS

    def add_norm(
        self, hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> torch.Tensor:
        target = torch.empty_like(hidden)
        args = self._norm_args
        args[rows.SOURCE] = hidden.data_ptr()
        args[rows.DELTA] = 0 if delta is None else delta.data_ptr()
        args[rows.WEIGHT] = weight.data_ptr()
        self._run_rows(self._ops.add_norm, args, self._norm_at, target)
        return target

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        target = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
        self._gate_args[rows.SOURCE] = gate_up.data_ptr()
        self._run_rows(self._ops.gate, self._gate_args, self._gate_at, target)
        return target

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        target = qkv.new_empty((qkv.shape[0], self._ops.shape.q_dim))
        args = self._attention_args
        args[attention.TARGET] = target.data_ptr()
        args[attention.WRITES_FIRST] = self._is_one_phase
        if self._is_one_phase:
            self._see(layer, qkv)
        else:
            self.write(layer, qkv)
        args[attention.NEXT] = 0
        self._ops.attend(self._attention_at, self._num_threads)
        return target

    def write(self, layer: int, qkv: torch.Tensor) -> None:
        self._see(layer, qkv)
        self._attention_args[attention.NEXT] = 0
        self._ops.write(self._attention_at, self._num_threads)

    def _see(self, layer: int, qkv: torch.Tensor) -> None:
        """This layer's rows are the next to be written or attended from."""
        args = self._attention_args
        args[attention.QKV] = qkv.data_ptr()
        args[attention.LAYER_BYTES_BEFORE] = layer * 4 * self._ops.shape.kv_dim * PAGE_TOKENS

    def _run_rows(
        self, kernel: KernelCall, args: np.ndarray, args_at: int, target: torch.Tensor
    ) -> None:
        num_rows, width = target.shape
        threads = 1 if num_rows < SERIAL_ROWS else self._num_threads
        args[rows.NEXT], args[rows.NUM_ROWS], args[rows.WIDTH] = 0, num_rows, width
        args[rows.STEP] = max(1, num_rows // (4 * threads))
        args[rows.TARGET] = target.data_ptr()
        kernel(args_at, threads)

    def _fill_attention_args(self) -> np.ndarray:
        ops, batch, cache = self._ops, self._batch, self._cache
        args = np.zeros(attention.NUM_SLOTS, dtype=np.int64)
        args[attention.NUM_ITEMS] = len(self._items)
        args[attention.ITEMS] = self._items.ctypes.data
        args[attention.NUM_HEADS] = ops.shape.num_heads
        args[attention.NUM_KV_HEADS] = ops.shape.num_kv_heads
        args[attention.HEAD_DIM] = ops.shape.head_dim
        args[attention.COS] = ops.rope.cos.data_ptr()
        args[attention.SIN] = ops.rope.sin.data_ptr()
        args[attention.POOL] = cache.pages.data_ptr()
        args[attention.PAGE_BYTES] = cache.layout.page_bytes
        args[attention.ROW_STARTS] = batch.row_starts.ctypes.data
        args[attention.STARTS] = batch.starts.ctypes.data
        args[attention.PAGE_STARTS] = batch.page_starts.ctypes.data
        args[attention.PAGES] = batch.pages.ctypes.data
        return args


def _work_items(batch: Batch, num_kv_heads: int) -> Int32Array:
    """int32 [items, 4], longest contexts first so that threads finish together."""
    lengths = np.diff(batch.row_starts)
    num_parts = -(-lengths // ITEM_ROWS)
    chunks = np.repeat(np.arange(len(lengths)), num_parts)
    ends = np.cumsum(num_parts)
    firsts = (np.arange(ends[-1]) - np.repeat(ends - num_parts, num_parts)) * ITEM_ROWS
    order = np.argsort(-(batch.starts[chunks] + firsts), kind="stable")
    chunks, firsts = chunks[order], firsts[order]
    items = np.empty((len(order), num_kv_heads, 4), np.int32)
    items[:, :, 0], items[:, :, 1] = chunks[:, None], np.arange(num_kv_heads)
    items[:, :, 2] = firsts[:, None]
    items[:, :, 3] = np.minimum(ITEM_ROWS, lengths[chunks] - firsts)[:, None]
    return items.reshape(-1, 4)


@cache
def _compiled() -> tuple[KernelCall, KernelCall, KernelCall, KernelCall]:
    return (
        KernelCall(rows.add_norm_rows),
        KernelCall(rows.gate_rows),
        KernelCall(attention.attend_items),
        KernelCall(attention.write_items),
    )
