"""What a replay showed: numbers as JSON, and a page with plots that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rorqual_sim.replay.fleet import ReplayResult, Sample
from rorqual_sim.replay.options import ReplayOptions

_PERCENTILES = (50, 90, 95, 99)
_WIDTH, _HEIGHT, _MARGIN = 640, 220, 46


def summary(result: ReplayResult, options: ReplayOptions, trace_name: str) -> dict[str, Any]:
    """Plain values: waits, rates, use of the cards, what the cache gave.

    Raises: ValueError when no request was finished.
    """
    requests = result.requests
    if not requests:
        raise ValueError("no request of the trace falls into the replay")
    begin_s = min(r.arrival_s for r in requests)
    seconds = max(result.end_s - begin_s, 1e-9)
    cards = result.prefill_card_s + result.decode_card_s
    outputs = sum(r.output_tokens for r in requests)
    inputs = sum(r.input_tokens for r in requests)
    hours = max(result.end_s, 1e-9) / 3600
    return {
        "trace": trace_name,
        "policy": options.policy,
        "num_prefill": options.num_prefill,
        "num_decode": options.num_decode,
        "seed": options.seed,
        "num_requests": len(requests),
        "seconds": seconds,
        "ttft_s": distribution([r.first_token_s - r.arrival_s for r in requests]),
        "tpot_s": distribution([r.tpot_s for r in requests if r.output_tokens > 1]),
        "input_tokens_per_s": inputs / seconds,
        "output_tokens_per_s": outputs / seconds,
        "cached_share": sum(r.cached_tokens for r in requests) / inputs,
        "num_window_replays": result.num_replays,
        "num_refused": result.num_refused,
        "num_restarts": sum(r.num_restarts for r in requests),
        "max_queued": max((s.num_queued for s in result.samples), default=0),
        "prefill_busy": result.prefill_busy,
        "decode_busy": result.decode_busy,
        "card_hours": {
            "prefill": result.prefill_card_s / 3600,
            "decode": result.decode_card_s / 3600,
        },
        "cards": cards / 3600 / hours,
        "tokens_per_card_s": (inputs + outputs) / max(cards, 1e-9),
        "actions": result.actions,
    }


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and maximum; empty without values."""
    if not values:
        return {}
    array = np.array(values)
    found = {f"p{p}": float(np.percentile(array, p)) for p in _PERCENTILES}
    return {"mean": float(array.mean()), **found, "max": float(array.max())}


def html_report(
    result: ReplayResult, values: dict[str, Any], options: ReplayOptions, card_hour: float = 0.0
) -> str:
    """One self-contained page. card_hour: what one costs; 0 = cards are counted instead."""
    requests, samples = result.requests, result.samples
    times = [s.at_s for s in samples]
    unit_cost = (card_hour or 1.0) / 3600
    cost = [unit_cost * seconds for seconds in _card_seconds(samples, options.ranks_per_group)]
    plots = [
        _cumulative("TTFT", "s", [r.first_token_s - r.arrival_s for r in requests]),
        _cumulative("TPOT", "ms", [r.tpot_s * 1e3 for r in requests if r.output_tokens > 1]),
        _lines("Prompts queued", times, [("queued", [s.num_queued for s in samples])]),
        _lines("Requests generating", times, [("running", [s.num_decoding for s in samples])]),
        _lines(
            "Instances",
            times,
            [
                ("prefill", [s.num_prefill for s in samples]),
                ("decode", [s.num_decode for s in samples]),
            ],
        ),
        _lines("Utilisation", times[1:], _utilisation(samples)),
        _lines("Cost so far" if card_hour else "Card hours so far", times, [("", cost)]),
    ]
    title = escape(f"{values['trace']}: {values['policy']}")
    return (
        f"<!doctype html><meta charset=utf-8><title>{title}</title>"
        "<style>body{font:15px system-ui;margin:2em;max-width:900px}svg{display:block;margin:1em 0}"
        "text{font:12px system-ui}pre{background:#f4f4f4;padding:1em}</style>"
        f"<h1>{title}</h1>{''.join(plots)}<h2>Numbers</h2>"
        f"<pre>{escape(json.dumps(values, indent=2))}</pre>\n"
    )


def _utilisation(samples: Sequence[Sample]) -> list[tuple[str, list[float]]]:
    """Share of the instances' time between samples in which they computed."""

    def share(busy_s: float, num_up: int, seconds: float) -> float:
        return min(1.0, busy_s / max(num_up * seconds, 1e-9))

    spans = [(a, b, b.at_s - a.at_s) for a, b in pairwise(samples)]
    return [
        (
            "prefill",
            [share(b.prefill_busy_s - a.prefill_busy_s, b.num_prefill, t) for a, b, t in spans],
        ),
        (
            "decode",
            [share(b.decode_busy_s - a.decode_busy_s, b.num_decode, t) for a, b, t in spans],
        ),
    ]


def _card_seconds(samples: Sequence[Sample], ranks_per_group: int) -> list[float]:
    """Until each sample."""
    used = [
        (b.at_s - a.at_s) * (b.num_prefill * ranks_per_group + b.num_decode)
        for a, b in pairwise(samples)
    ]
    return [0.0, *accumulate(used)][: len(samples)]


def _cumulative(name: str, unit: str, values: list[float]) -> str:
    """Share of requests below a value, up to the 99.5th percentile."""
    if not values:
        return ""
    shares = np.linspace(0, 0.995, 200)
    xs = np.quantile(np.array(values), shares).tolist()
    return _chart(f"{name}: share of requests below", unit, xs, [("", shares.tolist())])


def _lines(name: str, times: list[float], series: Sequence[tuple[str, Sequence[float]]]) -> str:
    return _chart(
        f"{name} over time", "s", times, [(n, [float(v) for v in vs]) for n, vs in series]
    )


_COLOURS = ("#1f77b4", "#d62728", "#2ca02c")


def _chart(title: str, unit: str, xs: list[float], series: list[tuple[str, list[float]]]) -> str:
    left, right = min(xs, default=0.0), max(xs, default=1.0)
    top = max((max(ys, default=0.0) for _, ys in series), default=1.0) or 1.0
    width = max(right - left, 1e-12)

    def point(x: float, y: float) -> str:
        across = _MARGIN + (x - left) / width * (_WIDTH - 2 * _MARGIN)
        down = _HEIGHT - _MARGIN - y / top * (_HEIGHT - 2 * _MARGIN)
        return f"{across:.1f},{down:.1f}"

    lines = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[i]}" stroke-width="1.5" '
        f'points="{" ".join(map(point, xs, ys))}"/>'
        f'<text x="{_WIDTH - _MARGIN - 60}" y="{_MARGIN + 14 * i}" fill="{_COLOURS[i]}">'
        f"{escape(name)}</text>"
        for i, (name, ys) in enumerate(series)
    )
    bottom = _HEIGHT - _MARGIN
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"><title>{escape(title)}</title>'
        f'<text x="{_MARGIN}" y="18" font-weight="bold">{escape(title)}</text>'
        f'<path d="M{_MARGIN} {_MARGIN}V{bottom}H{_WIDTH - _MARGIN}" fill="none" stroke="#888"/>'
        f'<text x="4" y="{_MARGIN + 4}">{top:.3g}</text><text x="4" y="{bottom}">0</text>'
        f'<text x="{_MARGIN}" y="{bottom + 18}">{left:.3g}</text>'
        f'<text x="{_WIDTH - 2 * _MARGIN}" y="{bottom + 18}">{right:.3g} {unit}</text>{lines}</svg>'
    )
