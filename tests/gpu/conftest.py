"""Tests that need an accelerator; without one all of them are skipped, and say so."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> str:
    if not torch.cuda.is_available():
        pytest.skip(f"no GPU: torch {torch.__version__} shows no CUDA or ROCm device")
    return "cuda"
