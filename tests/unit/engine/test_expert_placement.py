"""Placement tables: what is refused, and that every row finds a replica of its expert."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.parallel import BadPlacement, ExpertGroup, ExpertPlacement
from rorqual_engine.parallel.exchange import ExpertExchange
from rorqual_engine.parallel.load import LayerCounter
from rorqual_engine.parallel.split import RecentSplit, SplitBy, make_split


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


def test_a_starting_table_has_redundant_experts_within_nodes() -> None:
    table = ExpertPlacement.start(16, 4, 3, 2).ranks
    assert [len(experts) for experts in table] == [7] * 4
    assert not {*table[0], *table[1]} & {*table[2], *table[3]}
    few = ExpertPlacement.start(4, 2, 4, 1).ranks
    assert [sorted(experts) for experts in few] == [[0, 1, 2, 3]] * 2
    assert ExpertPlacement.start(5, 1, 4, 1).ranks == ((0, 1, 2, 3, 4),)
    for sizes in ((16, 3, 1, 2), (15, 4, 1, 2), (2, 3, 1, 1)):
        with pytest.raises(BadPlacement):
            ExpertPlacement.start(*sizes)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([SplitBy.OWN, SplitBy.RECENT]))
def test_every_row_goes_to_a_slot_with_its_expert(data: st.DataObject, by: SplitBy) -> None:
    num_ranks, num_experts = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    subset = st.lists(st.integers(0, num_experts - 1), unique=True)
    ranks = [data.draw(subset) for _ in range(num_ranks)]
    missing = set(range(num_experts)) - {e for held in ranks for e in held}
    ranks[0] += sorted(missing)
    placement = ExpertPlacement(num_experts, tuple(tuple(held) for held in ranks))
    choices = st.lists(st.integers(0, num_experts - 1), min_size=2, max_size=2)
    steps = data.draw(st.lists(st.lists(choices, max_size=9), min_size=1, max_size=3))
    split, counter = make_split(by, placement, _Nobody()), LayerCounter(num_experts)
    for rows in steps:
        experts = torch.tensor(rows, dtype=torch.int32).view(-1, 2)
        to = split.destinations(experts, counter)
        assert to.ranks.shape == to.slots.shape == experts.shape
        for rank, slot, expert in zip(
            *(t.flatten().tolist() for t in (to.ranks, to.slots, experts)), strict=True
        ):
            assert ranks[rank][slot] == expert
    load = counter.load()
    given = [expert for rows in steps for row in rows for expert in row]
    assert load.counts.tolist() == [given.count(expert) for expert in range(num_experts)]
    assert load.num_rows == len(given)
    assert load.mean_rows == pytest.approx(len(given) / num_ranks)
    assert load.mean_rows <= load.busiest_rows <= len(given)


def test_recent_rows_decide_how_the_next_are_split() -> None:
    """Rank 0 alone has all of expert 1, rank 1 nothing of expert 2: it gets expert 0."""
    split, counter = RecentSplit(ExpertPlacement(3, ((0, 1), (0, 2))), 0), LayerCounter(3)
    step = torch.tensor([[0, 1]] * 10)
    first = split.destinations(step, counter).ranks[:, 0].tolist()
    assert sorted(set(first)) == [0, 1]
    for _ in range(6 * RecentSplit.STEPS):
        split.destinations(step, counter)
    last = split.destinations(step, counter).ranks[:, 0].tolist()
    assert last.count(1) >= 9


class _Nobody(ExpertExchange):
    rank, size = 0, 2
    share = move = dispatch = combine = close = None  # type: ignore[assignment]


def test_a_table_of_another_model_is_refused() -> None:
    group = ExpertGroup(_Nobody(), {3: ExpertPlacement.even(16, 2)})
    assert group.placement(3, 16).ranks == ExpertPlacement.even(16, 2).ranks
    assert group.placement(0, 8) == ExpertPlacement.even(8, 2)
    with pytest.raises(BadPlacement, match="layer 3 has 8 experts for 2 ranks, its table 16 for 2"):
        group.placement(3, 8)
    apart = ExpertGroup(_Nobody(), {0: ExpertPlacement(2, ((0, 1), (0,)))}, num_nodes=2)
    with pytest.raises(BadPlacement, match="in two of the nodes"):
        apart.placement(0, 2)
