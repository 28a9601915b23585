"""Runs the kernel cases under Triton's interpreter and prints, as JSON, what went wrong in each.

A process of its own: the interpreter must be asked for before triton is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

os.environ["TRITON_INTERPRET"] = "1"

from rorqual_engine.device import configure_threads

configure_threads(1)

import torch  # noqa: E402
from rorqual_engine.kernels.triton import choice, index  # noqa: E402

from tests.support.kernel_cases import CASES, Kernels  # noqa: E402


def main(names: list[str]) -> None:
    choice._BLOCK, index._BLOCK = 64, 512  # so that small rows have several blocks
    results = {}
    for name, function in CASES.items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            function(Kernels("cpu"))
            error = ""
        except Exception:
            error = traceback.format_exc()
        results[name] = {"error": error, "seconds": round(time.monotonic() - began, 2)}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
