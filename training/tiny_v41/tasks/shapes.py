"""Pictures of coloured shapes and questions about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import (
    PICTURE_URL,
    Answer,
    Exercise,
    Picture,
    Shape,
    Turn,
    user,
)

CELL_PIXELS = 42
"""Side of a cell; as much as a token of the tower sees."""
_CELLS = 3
_PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
_PAINT: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 60, 220),
    "yellow": (240, 220, 40),
    "purple": (140, 40, 170),
    "orange": (250, 140, 20),
    "black": (15, 15, 15),
    "white": (250, 250, 250),
}


def shapes(draw: Draw, num_questions: int = 1) -> Exercise:
    """One picture, and questions about it in turn."""
    picture = draw.on_side(lambda: _picture(draw), _layout)
    question, answer = _question(draw, picture.shapes)
    image = {"type": "image_url", "image_url": {"url": PICTURE_URL.format(number=0)}}
    text = {"type": "text", "text": question}
    parts = [image, text] if draw.chance(0.7) else [text, image]
    turns = [Turn(({"role": "user", "content": parts},), answer)]
    for _ in range(num_questions - 1):
        question, answer = _question(draw, picture.shapes)
        turns.append(Turn((user(question),), answer))
    return Exercise("shapes", tuple(turns), pictures=(picture,))


def _picture(draw: Draw) -> Picture:
    count = draw.one((1, 1, 2, 2, 3, 4))
    cells = sorted(draw.some(range(_CELLS * _CELLS), count))
    shown = tuple(
        Shape(draw.one(words.COLOURS), draw.one(words.FORMS), cell // _CELLS, cell % _CELLS)
        for cell in cells
    )
    return Picture(_CELLS, shown, draw.between(90, 190), draw.below(1 << 30))


def _layout(picture: Picture) -> str:
    return "|".join(f"{s.colour} {s.form} {s.row} {s.column}" for s in picture.shapes)


def _question(draw: Draw, shown: Sequence[Shape]) -> tuple[str, Answer]:
    kind = draw.below(6)
    if kind == 0:
        return draw.one(("How many shapes are there?", "Count the shapes.")), Answer(
            str(len(shown))
        )
    shape = draw.one(shown)
    if kind == 1:
        return f"What is {_place(shape)}?", Answer(f"A {shape.colour} {shape.form}.")
    same_form = [s for s in shown if s.form == shape.form]
    if kind == 2 and len(same_form) == 1:
        return f"What colour is the {shape.form}?", Answer(shape.colour)
    same = [s for s in same_form if s.colour == shape.colour]
    if kind == 3 and len(same) == 1:
        return f"Where is the {shape.colour} {shape.form}?", Answer(
            f"{_place(shape)}.".capitalize()
        )
    question = draw.one(("Describe the picture.", "What do you see?", "What is in the picture?"))
    return question, Answer(describe(shown))


def describe(shown: Sequence[Shape]) -> str:
    """All shapes in reading order."""
    said = ", ".join(f"a {shape.colour} {shape.form} {_place(shape)}" for shape in shown)
    return f"{said[0].upper()}{said[1:]}."


def _place(shape: Shape) -> str:
    return _PLACES[shape.row][shape.column]


def paint(picture: Picture) -> npt.NDArray[np.uint8]:
    """uint8 [side, side, 3]; sizes, places and colours differ a little by the picture's jitter."""
    rng = random.Random(picture.jitter)
    side = picture.cells * CELL_PIXELS
    pixels = np.full((side, side, 3), picture.background, np.uint8)
    for shape in picture.shapes:
        radius = rng.uniform(12, 18)
        centre = [(at + 0.5) * CELL_PIXELS + rng.uniform(-2, 2) for at in (shape.row, shape.column)]
        y, x = np.mgrid[0:side, 0:side] + 0.5
        inside = _inside(shape.form, (y - centre[0]) / radius, (x - centre[1]) / radius)
        paint_of = np.clip([part + rng.randint(-12, 12) for part in _PAINT[shape.colour]], 0, 255)
        pixels[inside] = paint_of.astype(np.uint8)
    return pixels


def _inside(
    form: str, y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Which points belong to a form around the origin; its radius is 1."""
    distance = np.sqrt(x * x + y * y)
    wide, far = np.maximum(abs(x), abs(y)), abs(x) + abs(y)
    found: dict[str, npt.NDArray[np.bool_]] = {
        "circle": distance < 1,
        "ring": (distance < 1) & (distance > 0.55),
        "square": wide < 0.9,
        "diamond": far < 1.1,
        "cross": (wide < 1) & (np.minimum(abs(x), abs(y)) < 0.3),
        "triangle": (y < 0.8) & (y > -1) & (abs(x) < (y + 1) * 0.6),
    }
    return found[form]
