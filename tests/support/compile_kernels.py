"""Compiles every kernel for a GPU, down to machine code, on a machine that has none.

Shapes are those of the published V4.1-Flash. Prints, as JSON, the bytes of shared memory a
program of each kernel needs. The interpreter accepts more than the compiler does.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="rorqual-triton-")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
from rorqual_engine.kernels.registry import NAMES, TOPICS, KernelChoice, find_kernel
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.places import RowPlaces
from rorqual_engine.sampling import SamplingState
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

assert "triton" in NAMES
ROWS, HIDDEN, EXPERTS, INNER, VOCAB = 3, 5120, 384, 2304, 129280
HEADS, DIM, PAIRS, TOP_K = 64, 512, 32, 512
_run = JITFunction.run
shared_bytes: dict[str, int] = {}


class NoGpu:
    """Stands for the device that code is made for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    kernel = _run(self, *args, grid=grid, warmup=True, **kwargs)
    name = self.fn.__name__
    shared_bytes[name] = max(shared_bytes.get(name, 0), kernel.metadata.shared)
    return kernel


def find(op: str) -> Any:
    return find_kernel(op, "cuda", KernelChoice(everywhere="triton"))


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(1, dtype=torch.bfloat16).expand(shape)


def wide(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def compile_attention() -> None:
    places = RowPlaces(
        ints(0, 0, 1), ints(5, 6, 300), ints(0, 2), ints(5, 300), ints(0, 0), ints(0, 1),
        ints(0, 1, 2, 3), ints(0, 1, 4),
    )  # fmt: skip
    query, fresh = torch.zeros(ROWS, HEADS, DIM).bfloat16(), torch.zeros(ROWS, DIM).bfloat16()
    ring, entries = torch.zeros(2, 256, DIM).bfloat16(), torch.zeros(4, 64, DIM).bfloat16()
    chosen, angles = torch.zeros(ROWS, TOP_K, dtype=torch.int64), wide(ROWS, PAIRS)
    find("attend_entries")(
        query, fresh, ring, entries, chosen, wide(HEADS), angles, angles, places, window=128
    )
    find("rotate_pairs")(query, angles, angles)
    find("gather_entries")(entries, chosen, places)
    find("scatter_entries")(entries, fresh, ints(0, 1, -1), ints(0, 1, 1), places)
    find("write_window")(ring, fresh, places)
    queries, keys = torch.zeros(ROWS, 32, 128).bfloat16(), torch.zeros(4, 64, 128).bfloat16()
    for blocks in (None, chosen):
        find("index_scores")(
            queries, wide(ROWS, 32), keys, places, ratio=2, num_entries=2000, blocks=blocks
        )
    find("best_blocks")(wide(ROWS, 5000), 2048, block_entries=8)
    find("best_entries")(wide(ROWS, 5000), TOP_K, blocks=chosen)


def compile_streams_and_experts() -> None:
    streams, x = torch.zeros(ROWS, 4, HIDDEN).bfloat16(), torch.zeros(ROWS, HIDDEN).bfloat16()
    sizes = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20}
    find("mix_streams")(streams, wide(24, 4 * HIDDEN), wide(24), wide(3), **sizes)
    find("collapse_streams")(streams, wide(ROWS, 4))
    find("expand_streams")(streams, x, wide(ROWS, 4), wide(ROWS, 4, 4))
    gate_up, down = zeros(EXPERTS, HIDDEN, 2 * INNER), zeros(EXPERTS, INNER, HIDDEN)
    experts = torch.zeros(ROWS, 7, dtype=torch.int64)
    find("run_experts")(x, experts, wide(ROWS, 7), gate_up, down, clamp=10.0)


def compile_choice() -> None:
    logits = wide(ROWS, VOCAB)
    choices = RowChoices.of([SamplingState(1.0)] * ROWS, "cpu")
    bitmask = torch.zeros(ROWS, VOCAB // 32, dtype=torch.int32)
    find("choose_tokens")(logits, choices, bitmask)


def main(capability: int) -> None:
    driver.set_active(NoGpu(capability))
    JITFunction.run = compile_only
    compile_attention()
    compile_streams_and_experts()
    compile_choice()
    assert len(TOPICS) == 14, "a new operation belongs here as well"
    print(json.dumps(shared_bytes))


if __name__ == "__main__":
    main(int(sys.argv[1]))
