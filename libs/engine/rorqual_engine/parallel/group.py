"""What a model needs to share its experts with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rorqual_policy.expert_rebalance import is_within_nodes

from rorqual_engine.parallel.exchange import ExpertExchange
from rorqual_engine.parallel.placement import BadPlacement, ExpertPlacement
from rorqual_engine.parallel.split import SplitBy


@dataclass(frozen=True)
class ExpertGroup:
    """This rank's end of a group, and every layer's table."""

    exchange: ExpertExchange
    placements: Mapping[int, ExpertPlacement] = field(default_factory=dict)
    """By layer; others start without knowledge of their load."""
    num_redundant: int = 0
    """Experts of every rank beyond its share."""
    num_nodes: int = 1
    """Groups of consecutive ranks, equally many each, that share no expert: levelling the ranks
    sends nothing between them."""
    split: SplitBy = SplitBy.COUNTS

    def placement(self, layer: int, num_experts: int) -> ExpertPlacement:
        """Raises: BadPlacement when a table is for another model or another group."""
        given = self.placements.get(layer)
        if given is None:
            return ExpertPlacement.start(
                num_experts, self.exchange.size, self.num_redundant, self.num_nodes
            )
        if given.num_experts != num_experts or len(given.ranks) != self.exchange.size:
            raise BadPlacement(
                f"layer {layer} has {num_experts} experts for {self.exchange.size} ranks, its "
                f"table {given.num_experts} for {len(given.ranks)}"
            )
        if not is_within_nodes(given.ranks, self.num_nodes):
            raise BadPlacement(f"layer {layer}: its table has an expert in two of the nodes")
        return given
