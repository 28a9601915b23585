"""Coefficients of step times from measured steps: fitted at once, and kept up while serving.

A step takes sum of coefficient * feature seconds, with no coefficient below 0. What counts is the
relative error: a step of 5 ms that is off by 1 ms is as wrong as one of 500 ms that is off by 100.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import NamedTuple

from rorqual_policy.placement import PlacementParams
from rorqual_policy.step_cost import StepCost, checked_cost

_ROUNDS = 25
_TUKEY = 4.0
"""Residuals beyond this many robust deviations count no more. Source: Huber weights cut off, the
usual redescending estimate; 4 keeps all of 30 clean samples in."""
_LEAST_DEVIATION = 0.005
_LEAST_SAMPLES = 3


class StepSample(NamedTuple):
    """One measured step."""

    features: tuple[float, ...]
    took_s: float


class FitError(NamedTuple):
    """How far the fitted times are off, as a share of the measured ones."""

    median: float
    p90: float
    worst: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients in the order of the features, and their error on the very samples."""

    coefficients: tuple[float, ...]
    error: FitError


def prefill_features(chunks: Iterable[tuple[int, int]]) -> tuple[float, ...]:
    """Of a step over chunks (new tokens, context tokens), as `StepCost` multiplies them."""
    tokens = attended = squares = 0
    for num_tokens, context_tokens in chunks:
        tokens += num_tokens
        attended += num_tokens * context_tokens
        squares += num_tokens * num_tokens
    return 1.0, float(tokens), float(attended), float(squares)


def decode_features(num_running: int, kv_tokens: int) -> tuple[float, ...]:
    """Of a step, as `PlacementParams` multiplies them."""
    return 1.0, float(num_running), float(kv_tokens)


def fit_prefill_cost(samples: Sequence[StepSample]) -> tuple[StepCost, FitError]:
    """Cost of prefill chunks. Raises: ValueError for samples that don't tell it."""
    fit = fit_steps(samples)
    return checked_cost(StepCost(*fit.coefficients)), fit.error


def fit_decode_step(samples: Sequence[StepSample]) -> tuple[PlacementParams, FitError]:
    """Time of decode steps. Raises: ValueError for samples that don't tell it."""
    fit = fit_steps(samples)
    base_s, per_request_s, per_kv_token_s = fit.coefficients
    return PlacementParams(base_s, per_request_s, per_kv_token_s), fit.error


def fit_steps(samples: Sequence[StepSample]) -> Fit:
    """Non-negative coefficients of least relative error, outliers left out.

    The second coefficient, seconds a token or request, is always there. Fewer samples than features
    tell fewer coefficients than there are samples; the others are 0.

    Raises: ValueError for less than _LEAST_SAMPLES, or times that are not > 0.
    """
    if len(samples) < _LEAST_SAMPLES or any(not 0 < s.took_s < inf for s in samples):
        raise ValueError(
            f"need {_LEAST_SAMPLES} or more samples with times > 0, got {len(samples)}"
        )
    num = len(samples[0].features)
    most = num if len(samples) >= num else len(samples) - 1
    rows = [[value / s.took_s for value in s.features] for s in samples]
    weights = [1.0] * len(rows)
    for _ in range(_ROUNDS):
        coefficients = _non_negative(*_normal_equations(rows, weights), most)
        errors = [abs(_dot(row, coefficients) - 1.0) for row in rows]
        weights = _robust_weights(errors)
    errors.sort()
    error = FitError(_quantile(errors, 0.5), _quantile(errors, 0.9), errors[-1], len(errors))
    return Fit(tuple(coefficients), error)


def _robust_weights(errors: Sequence[float]) -> list[float]:
    """1 for errors of the usual size, less for larger ones, 0 far out."""
    usual = max(1.4826 * _quantile(sorted(errors), 0.5), _LEAST_DEVIATION)
    return [max(0.0, 1.0 - (error / (_TUKEY * usual)) ** 2) ** 2 for error in errors]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _dot(row: Sequence[float], coefficients: Sequence[float]) -> float:
    return sum(value * factor for value, factor in zip(row, coefficients, strict=True))


def _normal_equations(
    rows: Sequence[Sequence[float]], weights: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Of the weighted least squares problem rows * x = 1."""
    num = len(rows[0])
    gram = [[0.0] * num for _ in range(num)]
    moment = [0.0] * num
    for row, weight in zip(rows, weights, strict=True):
        for i, value in enumerate(row):
            moment[i] += weight * value
            for j, other in enumerate(row):
                gram[i][j] += weight * value * other
    return gram, moment


def _non_negative(gram: list[list[float]], moment: list[float], most: int) -> list[float]:
    """The best solution of so many coefficients at most, none negative: of a handful of features
    every subset is tried."""
    num = len(moment)
    best, best_gain = [0.0] * num, 0.0
    for size in range(1, most + 1):
        for kept in combinations(range(num), size):
            if 1 not in kept:
                continue
            found = _solve([[gram[i][j] for j in kept] for i in kept], [moment[i] for i in kept])
            if found is None or min(found) <= 0.0:
                continue
            gain = sum(value * moment[i] for value, i in zip(found, kept, strict=True))
            if gain > best_gain:
                best_gain = gain
                best = [0.0] * num
                for value, i in zip(found, kept, strict=True):
                    best[i] = value
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss elimination of a symmetric system, scaled to a diagonal of ones; None if singular."""
    num = len(right)
    if min(matrix[i][i] for i in range(num)) <= 0.0:
        return None
    scale = [matrix[i][i] ** -0.5 for i in range(num)]
    rows = [
        [matrix[i][j] * scale[i] * scale[j] for j in range(num)] + [right[i] * scale[i]]
        for i in range(num)
    ]
    for column in range(num):
        pivot = max(range(column, num), key=lambda i: abs(rows[i][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < 1e-12:
            return None
        for i in range(num):
            if i != column:
                factor = rows[i][column] / rows[column][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [rows[i][num] / rows[i][i] * scale[i] for i in range(num)]


@dataclass(frozen=True, slots=True)
class RefineParams:
    """How fast a running instance's own steps replace what was calibrated."""

    memory_steps: float = 500.0
    """A step counts half as much about 350 steps later."""
    trust_steps: float = 4.0
    """Split evenly between the coefficients. By its share each is pulled to a factor common to all,
    as by so many steps, and one such share pulls the common factor to the calibration; neither
    fades."""
    limit: float = 8.0
    """No coefficient leaves [calibrated / limit, calibrated * limit]."""

    def __post_init__(self) -> None:
        if self.memory_steps < 1 or self.trust_steps <= 0 or self.limit < 1:
            raise ValueError(f"need memory_steps, limit >= 1, trust_steps > 0; got {self}")


@dataclass(frozen=True, slots=True)
class Refinement:
    """What has been seen since the calibration, old steps faded out: a few numbers."""

    calibrated: tuple[float, ...]
    gram: tuple[tuple[float, ...], ...]
    moment: tuple[float, ...]
    factors: tuple[float, ...]
    """By which the calibrated coefficients are multiplied now."""

    @classmethod
    def of(cls, calibrated: Sequence[float]) -> "Refinement":
        """Nothing seen yet."""
        num = len(calibrated)
        return cls(tuple(calibrated), ((0.0,) * num,) * num, (0.0,) * num, factors=(1.0,) * num)

    @property
    def coefficients(self) -> tuple[float, ...]:
        """What a step costs by now."""
        return tuple(a * b for a, b in zip(self.calibrated, self.factors, strict=True))


def refine(state: Refinement, step: StepSample, params: RefineParams | None = None) -> Refinement:
    """The state after one more step: least squares with exponential forgetting.

    A step that took far longer than expected, as behind a busy neighbour, counts less. Steps
    without a time or with other features change nothing.
    """
    params = params or RefineParams()
    if step.took_s <= 0 or len(step.features) != len(state.calibrated):
        return state
    row = [f * c / step.took_s for f, c in zip(step.features, state.calibrated, strict=True)]
    off = abs(_dot(row, state.factors) - 1.0)
    weight = min(1.0, 0.25 / off) if off > 0 else 1.0
    keep = 1.0 - 1.0 / params.memory_steps
    gram = tuple(
        tuple(keep * old + weight * a * b for old, b in zip(line, row, strict=True))
        for line, a in zip(state.gram, row, strict=True)
    )
    moment = tuple(keep * old + weight * a for old, a in zip(state.moment, row, strict=True))
    return Refinement(state.calibrated, gram, moment, _factors(state, gram, moment, params))


def _factors(
    state: Refinement,
    gram: Sequence[Sequence[float]],
    moment: Sequence[float],
    params: RefineParams,
) -> tuple[float, ...]:
    """Least squares with a pull towards a common factor, by coordinates from where the last step
    ended, each held within its limits.

    What no step told lately changes like the rest: an engine that became slower did so altogether.
    """
    factors = list(state.factors)
    trust = params.trust_steps / len(moment)
    common = (sum(moment) + trust) / (sum(map(sum, gram)) + trust)
    for _ in range(2):
        for i, line in enumerate(gram):
            others = _dot(line, factors) - line[i] * factors[i]
            free = (moment[i] - others + trust * common) / (line[i] + trust)
            factors[i] = min(max(free, 1.0 / params.limit), params.limit)
    return tuple(factors)
