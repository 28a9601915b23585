"""The default model for tests: prepared once into the checkout's .rorqual/models."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@cache
def default_model_dir() -> Path:
    """Directory of smollm2-135m-instruct, made when it is not there.

    RORQUAL_MODEL_DIR wins, so that CI can keep it elsewhere.
    """
    given = os.environ.get("RORQUAL_MODEL_DIR")
    if given:
        return Path(given)
    from rorqual_engine.prepare import DEFAULT_MODEL, prepare_model

    return prepare_model(DEFAULT_MODEL, REPOSITORY / ".rorqual" / "models" / DEFAULT_MODEL)


@cache
def random_v41_dir() -> Path:
    """Directory of random-v41, made when it is not there."""
    from rorqual_engine.prepare.directory import RANDOM_MODEL, prepare_model

    return prepare_model(RANDOM_MODEL, REPOSITORY / ".rorqual" / "models" / RANDOM_MODEL)
