"""Runs a compiled kernel on torch's own OpenMP threads.

A second thread pool would fight torch's for the same cores: after every matrix product its
threads still spin for a while. So kernels join the pool that torch uses anyway.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from rorqual_engine.kernels.compiling import compile_c_function

_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class KernelCall:
    """A kernel, compiled when first made and cached on disk; calls release the interpreter lock.

    function: takes the address of its argument block as int64, returns nothing, never raises.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        self._compiled = compile_c_function(function)
        address: int = self._compiled.address
        self._address = ctypes.c_void_p(address)
        self._serial = _Kernel(address)
        self._parallel = openmp_parallel()

    def __call__(self, arguments: int, num_threads: int) -> None:
        """arguments: address of the kernel's argument block."""
        if num_threads == 1 or self._parallel is None:
            self._serial(arguments)
        else:
            self._parallel(self._address, ctypes.c_void_p(arguments), num_threads, 0)


@cache
def openmp_parallel() -> Callable[..., None] | None:
    """GOMP_parallel of the libgomp that torch loaded; None where torch uses something else."""
    torch.get_num_threads()
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    torch_root = str(Path(torch.__file__).parent.parent)
    for path in sorted(paths, key=lambda p: not p.startswith(torch_root)):
        function = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        if function is not None:
            function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            function.restype = None
            parallel: Callable[..., None] = function
            return parallel
    return None
