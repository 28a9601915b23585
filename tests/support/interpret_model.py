"""A small V4.1 whose steps run on interpreted Triton, against the same on the CPU's own steps.

Prints, as JSON, the largest difference of a logit in fp32 after every chunk.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

from rorqual_engine.device import configure_threads

configure_threads(1)

import torch  # noqa: E402
from rorqual_engine.batch import SequenceChunk  # noqa: E402
from rorqual_engine.kernels.registry import KernelChoice  # noqa: E402
from rorqual_engine.models import load_model  # noqa: E402
from rorqual_engine.models.base import CausalModel  # noqa: E402
from rorqual_engine.models.options import LoadOptions  # noqa: E402
from rorqual_engine.prepare.random_v41 import write_random_v41  # noqa: E402

from tests.support.tiny_v41 import CANDIDATES, FOUR_LAYERS  # noqa: E402

SIZES = (9, 1, 2)
CHANGES = (
    FOUR_LAYERS
    | CANDIDATES
    | {
        "hidden_size": 192,
        "index_topk": 4,
        "sliding_window": 16,
        "n_routed_experts": 4,
        "image_token_id": None,
        "vocab_size": 300,
    }
)


def run(model: CausalModel) -> list[torch.Tensor]:
    cache = model.new_cache(3)
    lease = cache.allocate(1)
    logits, at = [], 0
    for size in SIZES:
        tokens = [(7 * position) % 290 + 3 for position in range(at, at + size)]
        chunk = SequenceChunk(tokens, at, lease.pages, True, lease.window)
        logits.append(model.forward([chunk], cache)[0])
        at += size
    return logits


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_random_v41(Path(name), changes=CHANGES)
        options = LoadOptions(kernels=KernelChoice(everywhere="triton"))
        expected = run(load_model(Path(name), dtype="float32"))
        found = run(load_model(Path(name), dtype="float32", options=options))
    pairs = zip(found, expected, strict=True)
    print(json.dumps([float((a - b).abs().max()) for a, b in pairs]))


if __name__ == "__main__":
    main()
