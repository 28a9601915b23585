"""Compiles kernels once a machine, and again whenever any kernel source changes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
import rorqual_policy
from numba import cfunc, njit, types

_SOURCES = Path(__file__).parent
_POLICIES = Path(rorqual_policy.__file__).parent


def compile_c_function(function: Callable[[int], None]) -> Any:
    """A C function of one int64, compiled now. The result must be kept alive while it is used."""
    with _keyed_cache():
        return cfunc(types.void(types.int64), cache=True)(function)


def compile_function(function: Callable[..., Any]) -> Any:
    """A function compiled at its first call, without the interpreter lock."""
    with _keyed_cache():
        return njit(cache=True, nogil=True)(function)


@contextmanager
def _keyed_cache() -> Iterator[None]:
    """numba looks at the file of the compiled function only; kernels and policies span several, so
    the cache directory itself is named after all of them."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_cache_dir())
    try:
        yield
    finally:
        config.CACHE_DIR = before


@cache
def _cache_dir() -> Path:
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    for source in (*sorted(_SOURCES.glob("*.py")), *sorted(_POLICIES.glob("expert_*.py"))):
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()}"
    for parent in (_SOURCES / "__pycache__", Path.home() / ".cache" / "rorqual"):
        try:
            (parent / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(parent / name, os.W_OK):
            return parent / name
    return Path(tempfile.mkdtemp(prefix=f"rorqual-{name}-"))
