"""What is drawn follows the asked distribution and depends on its own row alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rorqual_engine.grammar import new_bitmask
from rorqual_engine.logit_rules import LogitRules, make_editor
from rorqual_engine.sampling import SamplingState, sample, uniforms

VOCAB = 300
GOLDEN_NOISE = [0.9363676366082775, 0.23043238890298712, 0.9979338501244428]


def _logits(seed: int, rows: int = 1, scale: float = 3.0) -> torch.Tensor:
    """Rounded to bf16, as real logits are: ties happen."""
    torch.manual_seed(seed)
    return (scale * torch.randn(rows, VOCAB)).bfloat16().float()


def _exact(row: npt.NDArray[np.float64], state: SamplingState) -> npt.NDArray[np.float64]:
    """The distribution after the cuts, written plainly."""
    scaled = row / state.temperature
    probs = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(row)), -row))
    kept = order[: state.top_k] if state.top_k else order
    mass = np.cumsum(probs[kept]) / probs[kept].sum()
    kept = kept[: int(np.searchsorted(mass, state.top_p)) + 1] if state.top_p < 1 else kept
    kept = kept[probs[kept] >= state.min_p * probs.max()]
    cut = np.zeros_like(probs)
    cut[kept] = probs[kept]
    return cut / cut.sum()


@pytest.mark.parametrize(
    "cuts",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_k": 40, "top_p": 0.9, "temperature": 1.5},
        {"min_p": 0.1},
        {"top_k": 1},
        {"top_p": 1e-6},
        {"top_p": 0.995, "temperature": 0.4},
        {"top_k": 250, "top_p": 0.8, "temperature": 0.25},
    ],
)
def test_frequencies_follow_the_cut_distribution(cuts: dict[str, float]) -> None:
    """Chi-square against the exact distribution; tokens cut away never appear."""
    num_draws = 4000
    fields = {"temperature": 1.0} | cuts
    logits = _logits(5)
    states = [SamplingState(seed=11, position=i, **fields) for i in range(num_draws)]  # type: ignore[arg-type]
    ids = sample(logits.expand(num_draws, -1), states).ids
    exact = _exact(logits[0].double().numpy(), states[0])
    counts = np.bincount(ids, minlength=VOCAB)
    assert counts[exact == 0].sum() == 0
    often = exact * num_draws >= 5
    expected = np.append(exact[often], exact[~often].sum()) * num_draws
    seen = np.append(counts[often], counts[~often].sum())
    filled = expected > 0
    chi_square = ((seen - expected)[filled] ** 2 / expected[filled]).sum()
    freedom = max(1, filled.sum() - 1)
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1000),
    top_k=st.integers(0, 400),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 1e-3, 0.2]),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 4.0]),
)
def test_every_draw_is_the_inverse_of_the_exact_distribution(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    """Whichever short cut the kernel takes, the token is the one the noise names."""
    logits = _logits(seed)
    state = SamplingState(temperature, top_p, top_k, min_p, seed, 3)
    cumulative = np.cumsum(_exact(logits[0].double().numpy(), state))
    token = sample(logits, [state]).ids[0]
    noise = uniforms([seed], [3])[0]
    below = cumulative[token - 1] if token else 0.0
    assert below - 1e-5 <= noise <= cumulative[token] + 1e-5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31),
    top_k=st.integers(0, 400),
    top_p=st.floats(0.01, 1.0),
    temperature=st.floats(0.05, 5.0),
)
def test_a_draw_depends_on_its_row_only(
    seed: int, position: int, top_k: int, top_p: float, temperature: float
) -> None:
    logits = _logits(seed % 97, rows=5)
    state = SamplingState(temperature, top_p, top_k, 0.0, seed, position)
    others = [SamplingState(), SamplingState(0.7, seed=1), SamplingState(2.0, top_k=3, seed=9)]
    alone = sample(logits[3:4], [state]).ids[0]
    among = sample(logits, [*others, state, SamplingState()]).ids
    assert among[3] == alone
    assert _exact(logits[3].double().numpy(), state)[alone] >= 0


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [7, 9, 250]] = 4.0
    assert sample(logits, [SamplingState(), SamplingState()]).ids.tolist() == [7, 0]


@pytest.mark.parametrize("temperature", [1e-9, 1e-38, 1e-40, 5e-324])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float, cuts: dict) -> None:
    logits = _logits(3, rows=1)
    logits[0, 11] = float("-inf")
    logits[0, 17] = logits.max() + 0.01
    state = SamplingState(temperature, seed=1, position=2, **cuts)
    assert sample(logits, [state]).ids.tolist() == [17]


def test_top_k_breaks_ties_by_id() -> None:
    logits = torch.zeros(1, VOCAB)
    states = [SamplingState(1.0, top_k=3, seed=4, position=i) for i in range(200)]
    assert set(sample(logits.expand(200, -1), states).ids.tolist()) == {0, 1, 2}


def test_noise_is_uniform_and_repeats() -> None:
    noise = uniforms([3] * 20000, range(20000))
    assert (noise >= 0).all() and (noise < 1).all()
    counts = np.histogram(noise, bins=50, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * np.sqrt(98)
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.03
    by_seed = uniforms(range(20000), [0] * 20000)
    assert abs(np.corrcoef(by_seed[:-1], by_seed[1:])[0, 1]) < 0.03
    assert uniforms([3], [17])[0] == noise[17]


def test_noise_never_changes_between_versions() -> None:
    """Golden: a moved request must continue with the numbers it began with."""
    found = uniforms([0, 1, 2**64 - 1], [0, 5, 1000]).tolist()
    assert found == pytest.approx(GOLDEN_NOISE, abs=1e-15)


def test_masked_tokens_are_never_chosen() -> None:
    logits = _logits(2, rows=3)
    bitmask = new_bitmask(3, VOCAB)
    bitmask[1] = 0
    bitmask[1, 2] = 1 << 5  # token 69
    bitmask[2] = 0
    bitmask[2, 0] = 0b110
    before = logits.clone()
    states = [SamplingState(), SamplingState(), SamplingState(3.0, seed=1)]
    ids = sample(logits, states, bitmask).ids
    assert ids[0] == logits[0].argmax()
    assert ids[1] == 69
    assert ids[2] in (1, 2)
    assert torch.equal(before, logits)


@pytest.mark.parametrize("vocab", [VOCAB, 1027])
def test_bf16_logits_are_drawn_and_scored_as_the_same_ones_in_fp32(vocab: int) -> None:
    halves = torch.randn(6, vocab, generator=torch.Generator().manual_seed(vocab)).bfloat16()
    bitmask = new_bitmask(6, vocab)
    bitmask[4, ::2] = 0
    states = [
        SamplingState(num_logprobs=5),
        SamplingState(1.0, seed=2),
        SamplingState(0.8, top_p=0.7, seed=3, num_logprobs=3),
        SamplingState(2.0, top_k=9, seed=4),
        SamplingState(1.0, min_p=0.2, seed=5),
        SamplingState(),
    ]
    rules = LogitRules(logit_bias=((3, 4.5), (7, -2.0)))
    editors = [None] * 5 + [make_editor(rules, [], [])]
    found = sample(halves, states, bitmask, editors)
    expected = sample(halves.float(), states, bitmask, editors)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.logprobs == expected.logprobs


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = _logits(8, rows=2)
    bitmask = new_bitmask(2, VOCAB)
    bitmask[0] = 0
    bitmask[0, 1] = 1
    states = [SamplingState(num_logprobs=4), SamplingState(0.5, num_logprobs=0)]
    result = sample(logits, states, bitmask)
    exact = logits.double().log_softmax(-1)
    first, second = result.logprobs
    assert first is not None and second is not None
    assert first.logprob == pytest.approx(float(exact[0, 32]))
    order = np.lexsort((np.arange(VOCAB), -logits[0].numpy()))[:4]
    assert first.top_ids == order.tolist()
    assert first.top_logprobs == pytest.approx(exact[0, first.top_ids].tolist())
    assert second.top_ids == []
    assert second.logprob == pytest.approx(float(exact[1, result.ids[1]]))
    assert sample(logits, [SamplingState()] * 2).logprobs == [None, None]


@pytest.mark.parametrize(
    "fields", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"min_p": 1.0}]
)
def test_settings_out_of_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SamplingState(**fields)  # type: ignore[arg-type]
