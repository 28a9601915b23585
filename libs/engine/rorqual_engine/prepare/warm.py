"""Compiles what a model needs, so that the services which start later find it in the cache."""

from __future__ import annotations

import time
from pathlib import Path

from rorqual_engine.batch import SequenceChunk
from rorqual_engine.exactness import is_exact
from rorqual_engine.models import load_model
from rorqual_engine.prepare.wheel import Progress
from rorqual_engine.sampling import SamplingState, sample


def warm_kernels(model_dir: Path, progress: Progress) -> None:
    """Loads the model, runs two tokens and draws one: proof that it works, and every compile.

    Raises: ModelNotFound, CorruptModel, UnsupportedModel.
    """
    began_s = time.monotonic()
    progress("compiling kernels (seconds when new, else an instant)")
    model = load_model(model_dir)
    cache = model.new_cache(1)
    with cache.allocate(1) as lease:
        chunk = SequenceChunk([0, 1], 0, lease.pages, wants_logits=True, window=lease.window)
        logits = model.forward([chunk], cache)
    sample(logits, [SamplingState(temperature=1.0, top_k=2, top_p=0.5)])
    if not is_exact(model):
        progress("note: on this CPU a token's logits can depend on the batch it is computed in")
    progress(f"kernels ready after {time.monotonic() - began_s:.1f} s")
