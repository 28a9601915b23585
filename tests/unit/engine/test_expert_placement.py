"""Placement tables: what is refused, and that every row finds a replica of its expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.parallel import BadPlacement, ExpertGroup, ExpertPlacement
from rorqual_engine.parallel.exchange import ExpertExchange


@pytest.mark.parametrize(
    ("num_experts", "ranks", "message"),
    [
        (3, ((0, 1), (1,)), r"no rank holds experts \[2\]"),
        (2, ((0, 1), (2, -1)), r"experts \[-1, 2\] are not among 0\.\.1"),
        (2, ((0, 1, 0), (1,)), r"rank 0 holds an expert twice: \[0, 1, 0\]"),
    ],
)
def test_wrong_tables_are_refused(
    num_experts: int, ranks: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(BadPlacement, match=message):
        ExpertPlacement(num_experts, ranks)


def test_slots_that_ranks_cannot_share_are_refused() -> None:
    with pytest.raises(BadPlacement, match="5 slots can't be shared evenly by 2 ranks"):
        ExpertPlacement.from_slots(4, [0, 1, 2, 3, 0], 2)
    found = ExpertPlacement.from_slots(3, [0, 1, 2, 0], 2)
    assert found.ranks == ((0, 1), (2, 0)) and found.replicas(0) == ((0, 0), (1, 1))


@pytest.mark.parametrize(("num_experts", "num_ranks"), [(16, 2), (5, 3), (2, 3), (384, 48)])
def test_an_even_table_differs_by_one_expert_at_most(num_experts: int, num_ranks: int) -> None:
    sizes = [len(experts) for experts in ExpertPlacement.even(num_experts, num_ranks).ranks]
    assert sum(sizes) == num_experts and max(sizes) - min(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_row_goes_to_a_slot_with_its_expert(data: st.DataObject) -> None:
    num_ranks, num_experts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    subset = st.lists(st.integers(0, num_experts - 1), unique=True)
    ranks = [data.draw(subset) for _ in range(num_ranks)]
    missing = set(range(num_experts)) - {e for held in ranks for e in held}
    ranks[0] += sorted(missing)
    placement = ExpertPlacement(num_experts, tuple(tuple(held) for held in ranks))
    choices = st.lists(st.integers(0, num_experts - 1), min_size=2, max_size=2)
    experts = torch.tensor(data.draw(st.lists(choices, min_size=1, max_size=5)))
    rank = data.draw(st.integers(0, num_ranks - 1))
    found = placement.destinations(experts, rank)
    again = placement.destinations(experts, rank)
    assert torch.equal(found.ranks, again.ranks) and torch.equal(found.slots, again.slots)
    for place in range(experts.numel()):
        to, slot = int(found.ranks.flatten()[place]), int(found.slots.flatten()[place])
        expert = int(experts.flatten()[place])
        assert ranks[to][slot] == expert
        assert to == rank or expert not in ranks[rank]


def test_replicas_elsewhere_take_turns() -> None:
    placement = ExpertPlacement(2, ((0,), (1,), (1,)))
    found = placement.destinations(torch.ones(4, 1, dtype=torch.int64), 0)
    assert found.ranks.flatten().tolist() == [1, 2, 1, 2]


class _Nobody(ExpertExchange):
    rank, size = 0, 2
    agree = dispatch = combine = close = None  # type: ignore[assignment]


def test_a_table_of_another_model_is_refused() -> None:
    group = ExpertGroup(_Nobody(), {3: ExpertPlacement.even(16, 2)})
    assert group.placement(3, 16).ranks == ExpertPlacement.even(16, 2).ranks
    assert group.placement(0, 8) == ExpertPlacement.even(8, 2)
    with pytest.raises(BadPlacement, match="layer 3 has 8 experts for 2 ranks, its table 16 for 2"):
        group.placement(3, 8)
