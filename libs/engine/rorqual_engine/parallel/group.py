"""What a model needs to share its experts with other ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rorqual_engine.parallel.exchange import ExpertExchange
from rorqual_engine.parallel.placement import BadPlacement, ExpertPlacement


@dataclass(frozen=True)
class ExpertGroup:
    """This rank's end of a group, and every layer's table."""

    exchange: ExpertExchange
    placements: Mapping[int, ExpertPlacement] = field(default_factory=dict)
    """By layer; others have their experts shared out evenly."""

    def placement(self, layer: int, num_experts: int) -> ExpertPlacement:
        """Raises: BadPlacement when a table is for another model or another group."""
        given = self.placements.get(layer)
        if given is None:
            return ExpertPlacement.even(num_experts, self.exchange.size)
        if given.num_experts != num_experts or len(given.ranks) != self.exchange.size:
            raise BadPlacement(
                f"layer {layer} has {num_experts} experts for {self.exchange.size} ranks, its "
                f"table {given.num_experts} for {len(given.ranks)}"
            )
        return given
