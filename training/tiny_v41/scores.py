"""`make scores SEED=n`: a seed's held-out exercises, asked over HTTP; one JSON line a family.

The fleet must serve rorqual-tiny-v41 (or whatever --model names).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from PIL import Image

from training.tiny_v41.grading import is_right
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
) -> list[bool]:
    """Which exercises of a group were answered rightly; an error is a wrong answer."""

    async def one(found: Exercise) -> bool:
        try:
            async with limit:
                response = await client.post("/v1/chat/completions", json=body_of(found, model))
        except httpx.HTTPError:
            return False
        if response.status_code != httpx.codes.OK:
            return False
        return is_right(found, response.json()["choices"][0]["message"])

    return await asyncio.gather(*map(one, group.exercises))


def line_of(group: Group, right: Sequence[bool]) -> Json:
    goal, share = GOALS.get(group.name), sum(right) / len(right)
    return {
        "name": f"scores {group.name}",
        "value": round(share, 4),
        "unit": "share",
        "goal": goal,
        "pass": None if goal is None else share >= goal,
        "load1": round(os.getloadavg()[0], 2),
        "count": len(right),
    }


async def run(args: argparse.Namespace) -> bool:
    """Prints a line a group. Returns: whether every goal is met."""
    limit, is_met = asyncio.Semaphore(args.at_once), True
    async with httpx.AsyncClient(base_url=args.url, timeout=_TIMEOUT_S) as client:
        for group in held_out(args.seed, args.count):
            line = line_of(group, await ask(client, group, args.model, limit))
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            is_met = is_met and line["pass"] is not False
    return is_met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.tiny_v41.scores", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="exercises of a group")
    parser.add_argument("--model", default="rorqual-tiny-v41")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--at-once", type=int, default=8)
    sys.exit(not asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
