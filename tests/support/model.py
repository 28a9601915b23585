"""The default model for tests: prepared once into the checkout's .rorqual/models."""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def _prepared(model: str) -> Path:
    """Of several test processes that find it missing one makes it, the others wait."""
    from rorqual_engine.prepare import prepare_model

    folder = REPOSITORY / ".rorqual" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return prepare_model(model, folder / model)


@cache
def default_model_dir() -> Path:
    """Directory of smollm2-135m-instruct, made when it is not there.

    RORQUAL_MODEL_DIR wins, so that CI can keep it elsewhere.
    """
    given = os.environ.get("RORQUAL_MODEL_DIR")
    if given:
        return Path(given)
    from rorqual_engine.prepare import DEFAULT_MODEL

    return _prepared(DEFAULT_MODEL)


@cache
def random_v41_dir() -> Path:
    """Directory of random-v41, made when it is not there."""
    from rorqual_engine.prepare.directory import RANDOM_MODEL

    return _prepared(RANDOM_MODEL)
