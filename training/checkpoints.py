"""Checkpoints of a run: complete or not there, the newest ones kept."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_KEPT = 2


@dataclass
class Progress:
    """How far a run is; with the seed it says which exercises come next."""

    stage: int = 0
    step: int = 0
    """Of the stage"""
    stage_tokens: int = 0
    total_tokens: int = 0
    seconds: float = 0.0
    """Of computing, over all runs"""


def save_checkpoint(
    directory: Path, progress: Progress, weights: dict[str, torch.Tensor], state: dict[str, Any]
) -> Path:
    """Writes all, then names it; older ones go, but one."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"checkpoint-{progress.stage}-{progress.step:07d}.pt"
    partial = path.with_suffix(f".partial.{os.getpid()}")
    plain = {name: value.detach().clone() for name, value in weights.items()}
    content = {"progress": asdict(progress), "weights": plain, "optimizer": _copied(state)}
    with partial.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    for old in _checkpoints(directory)[:-_KEPT]:
        old.unlink()
    return path


def _copied(state: Any) -> Any:
    """Tensors of their own, not views of larger ones."""
    if isinstance(state, torch.Tensor):
        return state.clone()
    return {k: _copied(v) for k, v in state.items()} if isinstance(state, dict) else state


def newest_checkpoint(directory: Path) -> Path | None:
    found = _checkpoints(directory)
    return found[-1] if found else None


def load_checkpoint(path: Path) -> tuple[Progress, dict[str, torch.Tensor], dict[str, Any]]:
    content = torch.load(path, weights_only=True)
    return Progress(**content["progress"]), content["weights"], content["optimizer"]


def _checkpoints(directory: Path) -> list[Path]:
    """By stage and step; directories without any are none."""

    def order(path: Path) -> tuple[int, int]:
        _, stage, step = path.stem.split("-")
        return int(stage), int(step)

    return sorted(directory.glob("checkpoint-*-*.pt"), key=order)
