"""`make scores SEED=n`: a seed's held-out exercises, asked over HTTP; one JSON line a family.

The fleet must serve rorqual-tiny-v41 (or whatever --model names). With --bare DIR the engine is
asked too, without a fleet, and a further line says how many answers are the same, word for word;
with --bare-only just the engine. With --decode-metrics URL (/metrics of the one decode instance)
lines say how many tokens a round of checked guesses gave, by family and in all.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from bench.report import emit
from training.tiny_v41.bare import BareAnswers
from training.tiny_v41.grading import calls_of, is_right
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import PICTURE_URL, Exercise, Json
from training.tiny_v41.tasks.mixture import FAMILIES, exercise
from training.tiny_v41.tasks.shapes import paint

GOALS: Mapping[str, float] = {
    "recall 1000": 0.95,
    "recall 2000": 0.95,
    "recall 4000": 0.9,
    "tools": 0.95,
    "json": 0.95,
    "shapes": 0.9,
}
_RECALL_TOKENS = (1000, 2000, 4000, 8000)
_TIMEOUT_S = 300.0
_ACCEPTED_GOAL = 2.5
_REPORT_S = 3.0
"""An instance reports every second."""


@dataclass(frozen=True)
class Group:
    """Exercises that are reported together."""

    name: str
    exercises: tuple[Exercise, ...]


def held_out(seed: int, count: int) -> list[Group]:
    """A seed's exercises, never drawn for training; the same seed, the same ones."""
    groups = []
    for family in FAMILIES:
        sizes = _RECALL_TOKENS if family == "recall" else (0,)
        for size in sizes:
            draws = [Draw(f"scores {seed} {n}", held_out=True) for n in range(count)]
            found = tuple(exercise(family, draw, int(size * 0.95)) for draw in draws)
            groups.append(Group(f"{family} {size}" if size else family, found))
    return groups


def body_of(found: Exercise, model: str) -> Json:
    """What is posted: temperature 0, pictures as PNG in data URLs."""
    urls = {
        PICTURE_URL.format(number=number): _png_url(paint(picture))
        for number, picture in enumerate(found.pictures)
    }
    text = json.dumps(found.body(model))
    for place, url in urls.items():
        text = text.replace(place, url)
    body: Json = json.loads(text)
    return {**body, "temperature": 0, "max_tokens": 400}


def _png_url(pixels: Any) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


async def ask(
    client: httpx.AsyncClient, group: Group, model: str, limit: asyncio.Semaphore
) -> list[Json]:
    """The messages that a group's exercises were answered with; an error is an empty one."""

    async def one(found: Exercise) -> Json:
        try:
            async with limit:
                response = await client.post("/v1/chat/completions", json=body_of(found, model))
        except httpx.HTTPError:
            return {}
        if response.status_code != httpx.codes.OK:
            return {}
        message: Json = response.json()["choices"][0]["message"]
        return message

    return await asyncio.gather(*map(one, group.exercises))


def report(name: str, group: Group, messages: Sequence[Json]) -> bool:
    """A line with the share that is right. Returns: whether the goal is met."""
    pairs = list(zip(group.exercises, messages, strict=True))
    share = sum(is_right(found, message) for found, message in pairs) / len(pairs)
    return emit(
        f"{name} {group.name}", share, "share", goal=GOALS.get(group.name), count=len(pairs)
    )


@dataclass(frozen=True)
class Guesses:
    """What a decode instance has counted since its start."""

    num_rounds: int = 0
    """Steps of one sequence that checked guesses"""
    num_taken: int = 0

    @property
    def accepted_length(self) -> float:
        """Tokens a round, the model's own included."""
        return 1 + self.num_taken / max(1, self.num_rounds)

    def since(self, before: Guesses) -> Guesses:
        return Guesses(self.num_rounds - before.num_rounds, self.num_taken - before.num_taken)


async def guesses_of(client: httpx.AsyncClient, url: str | None) -> Guesses:
    """From Prometheus metrics, once they tell of what has ended; none without a URL."""
    if url is None:
        return Guesses()
    await asyncio.sleep(_REPORT_S)
    text = (await client.get(url)).raise_for_status().text
    families = text_string_to_metric_families(text)
    values = {sample.name: int(sample.value) for family in families for sample in family.samples}
    return Guesses(
        values["rorqual_decode_guess_rounds_total"], values["rorqual_decode_taken_guesses_total"]
    )


def report_guesses(name: str, found: Guesses, goal: float | None = None) -> bool:
    """A line with the accepted length; none where nothing was guessed."""
    if not found.num_rounds:
        return True
    return emit(
        f"accepted {name}", found.accepted_length, "tokens", goal=goal, rounds=found.num_rounds
    )


def said(message: Mapping[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    """What counts of a message: content and calls."""
    return message.get("content") or "", calls_of(message)


async def run(args: argparse.Namespace) -> bool:
    """Prints lines for every group. Returns: whether every goal is met."""
    limit, is_met = asyncio.Semaphore(args.at_once), True
    bare = BareAnswers(args.bare) if args.bare else None
    async with httpx.AsyncClient(base_url=args.url, timeout=_TIMEOUT_S) as client:
        begun = last = await guesses_of(client, args.decode_metrics)
        for group in held_out(args.seed, args.count):
            found = [bare.ask(group.exercises)] if bare else []
            if bare:
                is_met &= report("bare scores", group, found[0])
            if not args.bare_only:
                found.append(await ask(client, group, args.model, limit))
                is_met &= report("scores", group, found[-1])
            if len(found) > 1:
                same = [said(a) == said(b) for a, b in zip(*found, strict=True)]
                is_met &= emit(
                    f"same answers {group.name}", sum(same) / len(same), "share", goal=1.0
                )
            before, last = last, await guesses_of(client, args.decode_metrics)
            report_guesses(group.name, last.since(before))
        is_met &= report_guesses("all", last.since(begun), _ACCEPTED_GOAL)
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_v41.scores", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="exercises of a group")
    parser.add_argument("--model", default="rorqual-tiny-v41")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--bare", type=Path, help="model directory for an engine in this process")
    parser.add_argument("--bare-only", action="store_true", help="ask no fleet")
    parser.add_argument("--decode-metrics", metavar="URL", help="of the decode instance")
    args = parser.parse_args()
    if args.bare_only and not args.bare:
        parser.error("--bare-only needs --bare DIR: nobody would be asked")
    sys.exit(not asyncio.run(run(args)))


if __name__ == "__main__":
    main()
