"""Promises of the device kernels, each against its plain torch twin, on any device.

Used under Triton's interpreter (in a process of its own) and on a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from rorqual_engine.kernels.registry import KernelChoice, find_kernel
from rorqual_engine.ref.choice import RowChoices
from rorqual_engine.ref.noise import ACCEPT, uniforms
from rorqual_engine.ref.places import RowPlaces
from rorqual_engine.sampling import SamplingState, sample
from rorqual_engine.sampling import uniforms as host_uniforms

PAGE = 8
"""Tokens a page stands for here; kernels are told entries a page, nothing else."""
RING = 16
NAN = float("nan")
CASES: dict[str, Callable[[Kernels], None]] = {}


class Kernels:
    """The implementation under test and its twin."""

    def __init__(self, device: str, name: str = "triton") -> None:
        self.device = torch.device(device)
        self._choice = KernelChoice(everywhere=name)

    def __call__(self, op: str) -> Callable[..., Any]:
        return find_kernel(op, self.device, self._choice)

    def twin(self, op: str) -> Callable[..., Any]:
        return find_kernel(op, self.device, KernelChoice(everywhere="twin"))

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(shape).to(self.device, dtype)

    def places(self, sequences: Sequence[tuple[int, int]], floors: Sequence[int] = ()) -> RowPlaces:
        """sequences: (start, rows); pages and slots in no order."""
        free_pages, slots = torch.randperm(40).tolist(), torch.randperm(6).tolist()
        rows, positions, first_rows, pages, page_starts = [], [], [], [], [0]
        for number, (start, count) in enumerate(sequences):
            first_rows.append(len(rows))
            rows += [number] * count
            positions += range(start, start + count)
            pages += [free_pages.pop() for _ in range(-(-(start + count) // PAGE))]
            page_starts.append(len(pages))
        return RowPlaces(
            *(
                torch.tensor(values, dtype=torch.int32, device=self.device)
                for values in (
                    rows,
                    positions,
                    first_rows,
                    [start for start, _ in sequences],
                    list(floors) or [0] * len(sequences),
                    slots[: len(sequences)],
                    pages,
                    page_starts,
                )
            )
        )

    def paged(self, per_page: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[40, per_page, dim], a part of larger pages; what lies around is NaN."""
        pool = torch.full((40, per_page * dim + 7), NAN, dtype=dtype, device=self.device)
        view = pool[:, 3 : 3 + per_page * dim].unflatten(1, (per_page, dim))
        view.copy_(torch.randn(view.shape))
        return view


def case(function: Callable[[Kernels], None]) -> Callable[[Kernels], None]:
    CASES[function.__name__] = function
    return function


def check_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    if found.dtype == torch.bfloat16:
        tolerance = 0.02
    assert found.dtype == expected.dtype and found.shape == expected.shape
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


def check_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert torch.equal(found, expected), (found, expected)


def check_bits(kernels: Kernels, found: torch.Tensor, expected: torch.Tensor) -> None:
    """A row's bits do not depend on the batch. The interpreter multiplies with the CPU's library,
    which sums a matrix' last rows in another order."""
    (check_close if kernels.device.type == "cpu" else check_equal)(found, expected)


# Pages and rings


@case
def entries_are_read_where_pages_say(kernels: Kernels) -> None:
    for per_page, dtype in ((8, torch.float32), (2, torch.bfloat16)):
        places = kernels.places([(17, 2), (0, 3), (31, 1)])
        entries = kernels.paged(per_page, 11, dtype)
        last = (places.positions.long() + 1) * per_page // PAGE
        numbers = torch.stack([torch.arange(19)] * 6).to(kernels.device)
        numbers = torch.where(numbers < last[:, None], numbers, -1).flip(1)
        for wanted in (numbers, numbers.int(), numbers[:, :0], numbers[:0]):
            rows = places.part(slice(0, len(wanted)))
            found = kernels("gather_entries")(entries, wanted, rows)
            check_equal(found, kernels.twin("gather_entries")(entries, wanted, rows))


@case
def rows_that_are_not_contiguous_are_refused(kernels: Kernels) -> None:
    places = kernels.places([(3, 1)])
    turned = kernels.randn(40, 11, 4).transpose(1, 2)
    numbers = torch.zeros(1, 1, dtype=torch.int32, device=kernels.device)
    with pytest.raises(ValueError, match="not contiguous"):
        kernels("gather_entries")(turned, numbers, places)


@case
def entries_are_written_and_nothing_else_is(kernels: Kernels) -> None:
    places = kernels.places([(17, 2), (0, 9)])
    numbers = torch.tensor([0, 3, 4, -1, 2, 0], dtype=torch.int32, device=kernels.device)
    owners = torch.tensor([0, 0, 0, 0, 1, 1], dtype=torch.int32, device=kernels.device)
    values = kernels.randn(6, 13)[:, 1:12]
    pools = []
    for find in (kernels, kernels.twin):
        torch.manual_seed(1)
        entries = kernels.paged(2, 11, torch.float32)
        find("scatter_entries")(entries, values, numbers, owners, places)
        find("scatter_entries")(entries, values[:0], numbers[:0], owners[:0], places)
        pools.append(entries)
    check_equal(*pools)


@case
def rings_keep_the_last_rows(kernels: Kernels) -> None:
    places = kernels.places([(5, 40), (30, 1), (0, RING), (15, 2)])
    values = kernels.randn(places.num_rows, 12, dtype=torch.bfloat16)
    rings = []
    for find in (kernels, kernels.twin):
        ring = torch.zeros(6, 3, RING, 12, dtype=torch.bfloat16, device=kernels.device)[:, 1]
        find("write_window")(ring, values, places)
        rings.append(ring)
    check_equal(*rings)
    slot = int(places.slots[0])
    check_equal(rings[0][slot, 44 % RING], values[39])


# Attention


def _attention(
    kernels: Kernels,
    places: RowPlaces,
    dtype: torch.dtype = torch.float32,
    *,
    heads: int = 5,
    dim: int = 24,
    per_page: int = 4,
    num_chosen: int = 11,
) -> tuple[Any, ...]:
    rows = places.num_rows
    visible = (places.positions.long() + 1) * per_page // PAGE
    chosen = torch.stack([torch.randperm(20)[:num_chosen] for _ in range(rows)] or [])
    chosen = chosen.to(kernels.device)
    chosen = torch.where(chosen < visible[:, None], chosen, -1)
    angles = kernels.randn(rows, 4)
    return (
        kernels.randn(rows, heads, dim, dtype=dtype),
        kernels.randn(rows, dim, dtype=dtype),
        kernels.randn(6, RING, dim, dtype=dtype),
        kernels.paged(per_page, dim, dtype),
        chosen,
        kernels.randn(heads),
        angles.cos(),
        angles.sin(),
        places,
    )


@case
def attention_equals_its_twin(kernels: Kernels) -> None:
    shapes = [
        ([(37, 3), (0, 5), (20, 1)], [0, 0, 15], torch.float32, {}),
        ([(7, 2), (31, 1)], [8, 0], torch.bfloat16, {"heads": 17, "dim": 16, "per_page": 8}),
        ([(15, 2)], [0], torch.float32, {"heads": 1, "per_page": 1, "num_chosen": 1}),
        ([(8, 1)], [0], torch.float32, {"num_chosen": 0}),
    ]
    for sequences, floors, dtype, sizes in shapes:
        given = _attention(kernels, kernels.places(sequences, floors), dtype, **sizes)
        found = kernels("attend_entries")(*given, window=9)
        check_close(found, kernels.twin("attend_entries")(*given, window=9))


@case
def attention_reads_the_window_alone(kernels: Kernels) -> None:
    query, fresh, ring, _, _, *rest = _attention(kernels, kernels.places([(0, 3), (40, 2)]))
    given = (query, fresh, ring, None, None, *rest)
    for window in (1, 9, 16):
        found = kernels("attend_entries")(*given, window=window)
        check_close(found, kernels.twin("attend_entries")(*given, window=window))


@case
def attention_never_reads_what_is_not_visible(kernels: Kernels) -> None:
    """Not even where it is NaN: before the floor, behind the row, unchosen entries."""
    places = kernels.places([(20, 2)], [18])
    query, fresh, ring, entries, chosen, *rest = _attention(kernels, places)
    slot = int(places.slots[0])
    ring[:] = NAN
    ring[slot, 18 % RING] = ring[slot, 19 % RING] = 1
    entries[:] = NAN
    chosen[:] = -1
    found = kernels("attend_entries")(query, fresh, ring, entries, chosen, *rest, window=9)
    assert found.isfinite().all()
    one = places.part(slice(0, 1))
    later = torch.cat([fresh[:1], torch.full_like(fresh[1:], NAN)])
    again = kernels("attend_entries")(
        query[:1], later, ring, entries, chosen[:1], *rest[:3], one, window=9
    )
    check_bits(kernels, again, found[:1])


@case
def attention_of_no_rows_is_empty(kernels: Kernels) -> None:
    places = kernels.places([(3, 1)])
    query, fresh, ring, entries, chosen, sinks, cos, sin, _ = _attention(kernels, places)
    none = places.part(slice(0, 0))
    given = (query[:0], fresh[:0], ring, entries, chosen[:0], sinks, cos[:0], sin[:0], none)
    assert kernels("attend_entries")(*given, window=4).shape == (0, 5, 24)


@case
def rows_of_drafts_equal_rows_one_by_one(kernels: Kernels) -> None:
    """A sequence's rows in one pass, between other sequences, have the bits of single steps."""
    places = kernels.places([(3, 2), (13, 4), (9, 1)])
    given = _attention(kernels, places, torch.bfloat16)
    query, fresh, ring, entries, chosen, sinks, cos, sin, _ = given
    together = kernels("attend_entries")(*given, window=9)
    for row in range(2, 6):
        one = slice(row, row + 1)
        step = replace(
            places.part(one),
            first_rows=torch.zeros_like(places.first_rows),
            starts=torch.full_like(places.starts, 13 + row - 2),
        )
        found = kernels("attend_entries")(
            query[one], fresh[one], ring, entries, chosen[one], sinks, cos[one], sin[one], step,
            window=9,
        )  # fmt: skip
        check_bits(kernels, found[0], together[row])
        kernels("write_window")(ring, fresh[one], step)


@case
def rotation_turns_pairs_and_back(kernels: Kernels) -> None:
    for shape, dtype in (((3, 5, 24), torch.float32), ((2, 1, 8), torch.bfloat16)):
        rows, angles = kernels.randn(*shape, dtype=dtype), kernels.randn(shape[0], 4)
        found = kernels("rotate_pairs")(rows, angles.cos(), angles.sin())
        check_close(found, kernels.twin("rotate_pairs")(rows, angles.cos(), angles.sin()))
        back = kernels("rotate_pairs")(found, angles.cos(), angles.sin(), back=True)
        check_close(back, rows)
    assert kernels("rotate_pairs")(rows[:0], angles[:0], angles[:0]).shape == (0, 1, 8)


# Selection


@case
def scores_equal_their_twin(kernels: Kernels) -> None:
    for ratio, heads, dtype in ((1, 3, torch.float32), (2, 20, torch.bfloat16)):
        places = kernels.places([(25, 3), (0, 2), (7, 1)])
        keys = kernels.paged(PAGE // ratio, 20, dtype)
        if ratio == 2:  # dimension by dimension in a page
            keys = kernels.paged(20, PAGE // ratio, dtype).transpose(1, 2)
        queries = kernels.randn(6, heads, 20, dtype=dtype)
        weights = kernels.randn(6, heads)
        sizes = {"ratio": ratio, "num_entries": 28 // ratio}
        blocks = torch.tensor([[0, 2, 3], [1, 2, -1], [0, 1, 6], [0, -1, -1], [-1] * 3, [0, 1, 9]])
        for extra in ({}, {"blocks": blocks.to(kernels.device), "block_entries": 4}):
            given = (queries, weights, keys, places)
            found = kernels("index_scores")(*given, **sizes, **extra)
            expected = kernels.twin("index_scores")(*given, **sizes, **extra)
            check_equal(found.isinf(), expected.isinf())
            check_close(found.nan_to_num(neginf=0), expected.nan_to_num(neginf=0))


def _tied_scores(kernels: Kernels, columns: int) -> torch.Tensor:
    scores = torch.randint(-2, 3, (7, columns)).float()
    scores[0] = float("-inf")
    scores[1, columns // 3 :] = float("-inf")
    scores[2] = 0.0
    scores[2, ::2] = -0.0
    scores[3] = torch.randn(columns) * 1e-40
    scores[4] = torch.randn(columns) * 1e30
    return scores.to(kernels.device)


@case
def selection_is_exact_with_ties_to_the_lowest(kernels: Kernels) -> None:
    for columns, counts in ((1, (1,)), (53, (5, 17, 60))):
        scores = _tied_scores(kernels, columns)
        for top_k in counts:
            found = kernels("best_entries")(scores, top_k)
            check_equal(found, kernels.twin("best_entries")(scores, top_k))
    check_equal(found[2, :3].cpu(), torch.tensor([0, 1, 2]))
    assert kernels("best_entries")(scores[:, :0], 4).shape == (7, 0)
    assert kernels("best_entries")(scores[:0], 4).shape == (0, 4)


@case
def long_rows_are_selected_from_exactly(kernels: Kernels) -> None:
    """More columns than a program takes at once."""
    scores = torch.randint(0, 50, (2, 2100)).float().to(kernels.device)
    for top_k in (1500,):
        found = kernels("best_entries")(scores, top_k)
        check_equal(found, kernels.twin("best_entries")(scores, top_k))


@case
def candidate_blocks_bound_the_selection(kernels: Kernels) -> None:
    scores = _tied_scores(kernels, 53)
    for count in (2, 20):
        blocks = kernels("best_blocks")(scores, count, block_entries=8)
        check_equal(blocks, kernels.twin("best_blocks")(scores, count, block_entries=8))
        columns = torch.where(blocks < 0, 0, blocks)[:, :, None] * 8
        columns = (columns + torch.arange(8, device=kernels.device)).flatten(1)
        inside = scores.gather(1, columns.clamp_max(52))
        is_none = (blocks < 0).repeat_interleave(8, 1) | (columns > 52)
        inside = inside.masked_fill(is_none, float("-inf"))
        found = kernels("best_entries")(inside, 6, blocks=blocks, block_entries=8)
        outside = scores.masked_fill(~_is_inside(blocks, 53), float("-inf"))
        expected = kernels.twin("best_entries")(outside, found.shape[1])
        check_equal(found, expected)


def _is_inside(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    of_column = torch.arange(columns, device=blocks.device) // 8
    return (of_column[None, :, None] == blocks[:, None, :]).any(-1)


# Streams and experts


@case
def streams_are_mixed_as_by_the_twin(kernels: Kernels) -> None:
    for num_rows, n, width, dtype in ((19, 4, 40, torch.float32), (1, 2, 9, torch.bfloat16)):
        streams = kernels.randn(num_rows, n, width, dtype=dtype)
        fn = 0.1 * kernels.randn((2 + n) * n, n * width)
        base, scale = kernels.randn((2 + n) * n), kernels.randn(3)
        sizes = {"eps": 1e-6, "hc_eps": 1e-6, "iterations": 20}
        found = kernels("mix_streams")(streams, fn, base, scale, **sizes)
        expected = kernels.twin("mix_streams")(streams, fn, base, scale, **sizes)
        for a, b in zip(found, expected, strict=True):
            check_close(a, b)
        alone = kernels("mix_streams")(streams[-1:], fn, base, scale, **sizes)
        for a, b in zip(alone, found, strict=True):
            check_bits(kernels, a[0], b[-1])
        pre, post, comb = expected
        check_close(
            kernels("collapse_streams")(streams, pre),
            kernels.twin("collapse_streams")(streams, pre),
        )
        output = kernels.randn(num_rows, width + 1, dtype=dtype)[:, 1:]
        given = (streams, output, post, comb)
        check_close(kernels("expand_streams")(*given), kernels.twin("expand_streams")(*given))
    assert kernels("collapse_streams")(streams[:0], pre[:0]).shape == (0, 9)


@case
def experts_equal_their_twin(kernels: Kernels) -> None:
    for num_rows, dtype in ((21, torch.float32), (3, torch.bfloat16)):
        x = kernels.randn(num_rows, 40, dtype=dtype)
        gate_up = (0.3 * kernels.randn(5, 2 * 28, 40, dtype=dtype)).transpose(1, 2)
        down = 0.3 * kernels.randn(5, 28, 40, dtype=dtype)
        experts = torch.randint(-1, 4, (num_rows, 3)).to(kernels.device)
        experts[0] = -1
        experts[:, 2] = 4
        weights = torch.rand(num_rows, 3).to(kernels.device)
        given = (x, experts, weights, gate_up, down)
        found = kernels("run_experts")(*given, clamp=2.0)
        check_close(found, kernels.twin("run_experts")(*given, clamp=2.0), _loose(dtype))
        last = (x[-1:], experts[-1:].int(), weights[-1:], gate_up, down)
        check_bits(kernels, kernels("run_experts")(*last, clamp=2.0)[0], found[-1])
    nobody = torch.full_like(experts, -1)
    assert not kernels("run_experts")(x, nobody, weights, gate_up, down, clamp=2.0).any()
    none = (x[:0], experts[:0], weights[:0], gate_up, down)
    assert kernels("run_experts")(*none, clamp=2.0).shape == (0, 40)


def _loose(dtype: torch.dtype) -> float:
    return 0.03 if dtype == torch.bfloat16 else 1e-5


# Tokens


def _logits(kernels: Kernels, rows: int, vocab: int) -> torch.Tensor:
    logits = 3 * torch.randn(rows, vocab)
    logits[:, 10:20] = logits[:, 9:10]
    logits[0, 20:] = logits[0].max()
    return logits.to(kernels.device)


def _states(count: int) -> list[SamplingState]:
    """The first is greedy."""
    rng = random.Random(5)
    return [SamplingState()] * min(count, 1) + [
        SamplingState(
            temperature=rng.choice([0.0, 0.5, 1.0, 2.0, 1e-3]),
            top_p=rng.choice([1.0, 0.9, 0.3]),
            top_k=rng.choice([0, 1, 7, 40]),
            min_p=rng.choice([0.0, 0.1]),
            seed=rng.getrandbits(64),
            position=rng.randrange(1000),
        )
        for _ in range(count - 1)
    ]


def _bitmask(kernels: Kernels, rows: int, vocab: int) -> torch.Tensor:
    words = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), dtype=torch.int64)
    words[0], words[1, 1:] = -1, 0
    words[1, 0] = 1 << 7
    return words.int().to(kernels.device)


@case
def tokens_are_those_of_the_cpu(kernels: Kernels) -> None:
    vocab = 75
    for num_rows in (10, 1):
        logits, states = _logits(kernels, num_rows, vocab), _states(num_rows)
        choices = RowChoices.of(states, kernels.device)
        for bitmask in (None, _bitmask(kernels, 10, vocab)[:num_rows]):
            host_mask = None if bitmask is None else bitmask.cpu()
            expected = torch.from_numpy(sample(logits.cpu(), states, host_mask).ids)
            found = kernels("choose_tokens")(logits, choices, bitmask)
            check_equal(found.cpu(), expected)
            check_equal(kernels.twin("choose_tokens")(logits, choices, bitmask).cpu(), expected)
    none = RowChoices.of([], kernels.device)
    assert kernels("choose_tokens")(logits[:0], none).shape == (0,)


def _positions(wanted: Callable[[float, float], bool], count: int) -> list[int]:
    """Of seed 0, whose noise (of draws, of acceptance) is as wanted."""
    tried = torch.arange(20000)
    draws = uniforms(torch.zeros_like(tried), tried).tolist()
    accepts = uniforms(torch.zeros_like(tried), tried, ACCEPT).tolist()
    found = [at for at in tried.tolist() if wanted(draws[at], accepts[at])]
    assert len(found) >= count
    return found[:count]


@case
def cuts_keep_exactly_what_they_should(kernels: Kernels) -> None:
    """Noise close to 1 names the last token kept, noise close to 0 the first."""
    weights = torch.tensor([0.5, 1.0, 0.5, 0.26, 0.26, 0.1])
    kept = {
        (1.0, 0, 0.0): (0, 5),
        (1.0, 0, 0.25): (0, 4),
        (1.0, 0, 0.27): (0, 2),
        (1.0, 2, 0.0): (0, 1),
        (1.0, 4, 0.0): (0, 3),
        (1.0, 4, 0.3): (0, 2),
        (0.38, 0, 0.0): (1, 1),
        (0.39, 0, 0.0): (0, 1),
        (0.99, 3, 0.0): (0, 2),
        (0.7, 3, 0.0): (0, 1),
    }
    low, high = (
        _positions(test, 1)[0] for test in (lambda d, a: d < 0.001, lambda d, a: d > 0.999)
    )
    states, expected = [], []
    for (top_p, top_k, min_p), ends in kept.items():
        states += [SamplingState(1.0, top_p, top_k, min_p, 0, at) for at in (low, high)]
        expected += ends
    choices = RowChoices.of(states, kernels.device)
    ids = torch.tensor([0, 1, 64, 65, 66, 67])  # in several blocks; nothing in between
    logits = torch.full((len(states), 68), float("-inf"))
    logits[:, ids] = weights.log() + 3
    logits = logits.to(kernels.device)
    for find in (kernels, kernels.twin):
        found = find("choose_tokens")(logits, choices)
        check_equal(found.cpu(), ids[expected])


@case
def noise_is_that_of_the_cpu(kernels: Kernels) -> None:
    seeds, positions = [0, 1, 2**63 + 5, 2**64 - 1], [0, 7, 10**6, 3]
    states = [SamplingState(1.0, seed=s, position=p) for s, p in zip(seeds, positions, strict=True)]
    choices = RowChoices.of(states, kernels.device)
    found = uniforms(choices.seeds, choices.positions).cpu()
    check_equal(found, torch.from_numpy(host_uniforms(seeds, positions)))
    other = uniforms(choices.seeds, choices.positions, ACCEPT).cpu()
    assert not (other == found).any()
    # Of two equal tokens the second is drawn exactly from noise of a half on.
    flat = torch.zeros(4, 2, device=kernels.device)
    check_equal(kernels("choose_tokens")(flat, choices).cpu(), (found >= 0.5).long())


def _checked(kernels: Kernels, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found = kernels("verify_drafts")(*given)
    for a, b in zip(found, kernels.twin("verify_drafts")(*given), strict=True):
        check_equal(a, b)
    return found


@case
def drafts_are_verified_as_by_the_twin(kernels: Kernels) -> None:
    vocab, num_rows = 70, 9
    logits, states = _logits(kernels, num_rows, vocab), _states(num_rows)
    choices = RowChoices.of(states, kernels.device)
    starts = torch.tensor([0, 1, 1, 4, 9], dtype=torch.int32, device=kernels.device)
    given = torch.softmax(logits + kernels.randn(num_rows, vocab), -1)
    drafts = torch.multinomial(given.cpu(), 1)[:, 0].to(kernels.device)
    bitmask = _bitmask(kernels, num_rows, vocab)
    _checked(kernels, logits, drafts, given, starts, choices, bitmask)
    accepted, tokens = _checked(kernels, logits, drafts, None, starts, choices, bitmask)
    assert accepted[1] == 0 and tokens[1] == -1, "a request without rows"


@case
def certain_drafts_give_the_tokens_of_plain_decoding(kernels: Kernels) -> None:
    logits, states = _logits(kernels, 6, 70), _states(6)
    choices = RowChoices.of(states, kernels.device)
    plain = kernels("choose_tokens")(logits, choices)
    drafts = plain.clone()
    drafts[3] = (drafts[3] + 1) % 70
    starts = torch.tensor([0, 6], dtype=torch.int32, device=kernels.device)
    accepted, token = kernels("verify_drafts")(logits, drafts, None, starts, choices)
    assert (int(accepted), int(token)) == (3, int(plain[3]))
    drafts = plain.clone()
    accepted, token = kernels("verify_drafts")(logits, drafts, None, starts, choices)
    assert (int(accepted), int(token)) == (5, int(plain[5]))


@case
def a_refused_draft_is_not_drawn_again(kernels: Kernels) -> None:
    """Accepted with 0.25 / 0.7; refused, it has no share of what is left."""
    positions = _positions(lambda draw, accept: draw < 0.2 and accept > 0.37, 3)
    positions += _positions(lambda draw, accept: draw < 0.2 and accept < 0.35, 2)
    states = [SamplingState(1.0, position=at) for at in positions for _ in range(2)]
    logits = torch.zeros(10, 4, device=kernels.device)
    given = torch.tensor([[0.7, 0.1, 0.1, 0.1]] * 10, device=kernels.device)
    starts = torch.arange(0, 11, 2, dtype=torch.int32, device=kernels.device)
    drafts = torch.zeros(10, dtype=torch.int64, device=kernels.device)
    choices = RowChoices.of(states, kernels.device)
    accepted, tokens = _checked(kernels, logits, drafts, given, starts, choices)
    assert accepted.tolist() == [0, 0, 0, 1, 1]
    assert tokens.tolist() == [1, 1, 1, 0, 0]


@case
def a_refused_draft_leaves_what_the_target_has_more_of(kernels: Kernels) -> None:
    vocab = 20
    logits = kernels.randn(8, vocab)
    states = [SamplingState(1.0, seed=s, position=4) for s in range(4) for _ in range(2)]
    choices = RowChoices.of(states, kernels.device)
    certain = torch.zeros(8, vocab, device=kernels.device)
    certain[:, 3] = 1.0  # drafts that the target hardly ever draws
    logits[:, 3] = -30.0
    drafts = torch.full((8,), 3, device=kernels.device)
    starts = torch.tensor([0, 2, 4, 6, 8], dtype=torch.int32, device=kernels.device)
    accepted, tokens = _checked(kernels, logits, drafts, certain, starts, choices)
    assert not accepted.any() and not (tokens == 3).any()
    same = torch.softmax(logits, -1)
    drafts = same.argmax(-1)
    accepted, _ = _checked(kernels, logits, drafts, same * 0.999, starts, choices)
    assert (accepted == 1).all(), "equal distributions accept everything"
    # More than the target everywhere: nothing is left, so the target itself is drawn from.
    accepted, _ = _checked(kernels, logits, drafts, same * 50, starts, choices)
    assert not accepted.all()
