"""Two processes that train together: half of every step's exercises, half of the weights' steps.

Weights, the optimizer's state and gradients lie in memory that both see. What they tell each other
keeps them in step: nobody reads what the other is still writing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

Weights = dict[str, torch.Tensor]
T = TypeVar("T")
_LONGEST_WAIT_S = 4 * 3600.0
"""For the other; long, because a run may be paused from outside."""


class PartnerGone(RuntimeError):
    """The other process ended or did not answer for hours."""


@dataclass(frozen=True)
class Block:
    """Named tensors of one dtype in one piece of memory."""

    flat: torch.Tensor
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def shared(cls, tensors: Mapping[str, torch.Tensor]) -> Block:
        """Copies, in memory that other processes see."""
        shapes = tuple((name, tuple(value.shape)) for name, value in tensors.items())
        flat = torch.cat([value.detach().flatten() for value in tensors.values()])
        flat.share_memory_()  # type: ignore[no-untyped-call]
        return cls(flat, shapes)

    def tensors(self) -> Weights:
        """Views by name."""
        found, at = {}, 0
        for name, shape in self.shapes:
            size = math.prod(shape)
            found[name] = self.flat[at : at + size].view(shape)
            at += size
        return found


@dataclass(frozen=True)
class Shared:
    """Memory of both."""

    weights: Block
    moments: Block
    squares: Block
    grads: tuple[Block, Block]
    """What each of them found"""
    num_steps: int
    """Of the optimizer, when the pair began"""

    @classmethod
    def of(cls, weights: Weights, learned: Weights, state: Mapping[str, Any]) -> Shared:
        """learned: those of the weights that have gradients; state: the optimizer's."""
        return cls(
            Block.shared(weights),
            Block.shared(state["moments"]),
            Block.shared(state["squares"]),
            (Block.shared(learned), Block.shared(learned)),
            state["num_steps"],
        )

    def state(self) -> dict[str, Any]:
        """The optimizer's."""
        return {
            "moments": self.moments.tensors(),
            "squares": self.squares.tensors(),
            "num_steps": self.num_steps,
        }


class Pair:
    """One of two processes' view of both. rank: 0 or 1."""

    def __init__(self, rank: int, connection: Connection, shared: Shared) -> None:
        self.rank = rank
        self._connection = connection
        self._grads = [block.tensors() for block in shared.grads]

    def tell(self, mine: T) -> tuple[T, T]:
        """What both tell, that of rank 0 first; returns when both have. Raises: PartnerGone."""
        try:
            self._connection.send(mine)
            if not self._connection.poll(_LONGEST_WAIT_S):
                raise PartnerGone(f"nothing for {_LONGEST_WAIT_S:.0f} s")
            other: T = self._connection.recv()
        except (EOFError, OSError) as err:
            raise PartnerGone(str(err)) from err
        return (mine, other) if self.rank == 0 else (other, mine)

    def write(self, grads: Mapping[str, torch.Tensor]) -> None:
        """What this process found; a tensor it has no gradient of counts as zero."""
        for name, target in self._grads[self.rank].items():
            found = grads.get(name)
            if found is None:
                target.zero_()
            else:
                target.copy_(found)

    def own_sums(self) -> Weights:
        """Gradients of both, added, of the tensors that this process steps."""
        first, second = self._grads
        return {name: first[name] + second[name] for name in self._own_names()}

    def _own_names(self) -> list[str]:
        """Every tensor is one process's, both have about as many values."""
        sizes, own = [0, 0], []
        grads = self._grads[0]
        for name in sorted(grads, key=lambda n: (-grads[n].numel(), n)):
            owner = int(sizes[1] < sizes[0])
            sizes[owner] += grads[name].numel()
            if owner == self.rank:
                own.append(name)
        return own
