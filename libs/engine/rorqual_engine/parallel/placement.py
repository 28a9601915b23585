"""Which rank holds which experts, and which replica of an expert a row goes to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rorqual_policy.expert_placement import place_in_nodes

from rorqual_engine.errors import EngineError


class BadPlacement(EngineError, ValueError):
    """A placement table that no group can work by."""


@dataclass(frozen=True)
class Destinations:
    """Where rows go, int64 [T, k] each."""

    ranks: torch.Tensor
    slots: torch.Tensor
    """Place among the experts of that rank."""


@dataclass(frozen=True)
class ExpertPlacement:
    """One layer's table: logical experts -> the slots that hold them.

    >>> ExpertPlacement(3, ((0, 1), (2, 0))).replicas(0)
    ((0, 0), (1, 1))
    """

    num_experts: int
    ranks: tuple[tuple[int, ...], ...]
    """The logical experts of every rank, slot after slot."""

    def __post_init__(self) -> None:
        """Raises: BadPlacement."""
        held = [expert for experts in self.ranks for expert in experts]
        unknown = sorted({expert for expert in held if not 0 <= expert < self.num_experts})
        if unknown:
            raise BadPlacement(f"experts {unknown} are not among 0..{self.num_experts - 1}")
        missing = sorted(set(range(self.num_experts)) - set(held))
        if missing:
            raise BadPlacement(f"no rank holds experts {missing}")
        for rank, experts in enumerate(self.ranks):
            if len(set(experts)) < len(experts):
                raise BadPlacement(f"rank {rank} holds an expert twice: {list(experts)}")

    @classmethod
    def even(cls, num_experts: int, num_ranks: int) -> ExpertPlacement:
        """Consecutive experts, every expert once, sizes that differ by one at most."""
        bounds = [rank * num_experts // num_ranks for rank in range(num_ranks + 1)]
        ranks = (range(bounds[r], bounds[r + 1]) for r in range(num_ranks))
        return cls(num_experts, tuple(tuple(experts) for experts in ranks))

    @classmethod
    def start(
        cls, num_experts: int, num_ranks: int, num_redundant: int, num_nodes: int
    ) -> ExpertPlacement:
        """Before anything is known of the load: `even`, or with num_redundant more experts on every
        rank, fewer where it already has nearly all of its node's. Nodes share no expert.

        Raises: BadPlacement.
        """
        if num_redundant == 0 and num_nodes == 1:
            return cls.even(num_experts, num_ranks)
        if num_ranks % num_nodes or num_experts % num_nodes:
            raise BadPlacement(
                f"{num_nodes} nodes can't share {num_ranks} ranks and {num_experts} experts evenly"
            )
        each, held = num_ranks // num_nodes, num_experts // num_nodes
        most = held // each if each > 1 else 0
        try:
            weights = [1.0] * num_experts
            return cls(
                num_experts, place_in_nodes(weights, num_nodes, each, min(num_redundant, most))
            )
        except ValueError as err:
            raise BadPlacement(str(err)) from err

    @classmethod
    def from_slots(cls, num_experts: int, slots: Sequence[int], num_ranks: int) -> ExpertPlacement:
        """slots: the logical expert of every physical one, as many for each rank, rank after rank;
        the form in which balancers give it."""
        if num_ranks < 1 or len(slots) % num_ranks:
            raise BadPlacement(f"{len(slots)} slots can't be shared evenly by {num_ranks} ranks")
        each = len(slots) // num_ranks
        parts = (tuple(slots[r * each : (r + 1) * each]) for r in range(num_ranks))
        return cls(num_experts, tuple(parts))

    def replicas(self, expert: int) -> tuple[tuple[int, int], ...]:
        """(rank, slot) of every replica, in order of ranks."""
        return tuple(
            (rank, experts.index(expert))
            for rank, experts in enumerate(self.ranks)
            if expert in experts
        )


def read_placements(path: Path) -> dict[int, ExpertPlacement]:
    """Tables by layer, from JSON: {"0": [[experts of rank 0], [experts of rank 1], ...], ...}.

    Raises: BadPlacement.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {int(layer): _placement_of(ranks) for layer, ranks in found.items()}
    except (OSError, ValueError, TypeError, AttributeError) as err:
        raise BadPlacement(f"{path} is no table of experts: {err}") from err


def _placement_of(ranks: list[list[int]]) -> ExpertPlacement:
    held = tuple(tuple(int(expert) for expert in experts) for experts in ranks)
    last = max((expert for experts in held for expert in experts), default=-1)
    return ExpertPlacement(last + 1, held)
