"""Exercises as token ids, written by the same code that writes prompts when the model is served."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rorqual_engine.models.deepseek.image_size import ImageRules, num_image_tokens, plan_image
from rorqual_recipe.conversation import ToolCall
from rorqual_recipe.encodings.base import Image, Segment, Special
from rorqual_recipe.encodings.deepseek_calls import CallWriter
from rorqual_recipe.encodings.deepseek_layout import V41
from rorqual_recipe.encodings.segments import SegmentWriter
from rorqual_recipe.model import load_served_model
from rorqual_recipe.model_files import read_model_files
from rorqual_recipe.protocols.base import ParseLimits
from rorqual_recipe.protocols.chat.parse import parse_chat_value
from rorqual_recipe.settings import RecipeSettings
from rorqual_recipe.tokens.segments import encode_segments

from training.tiny_v41.model.sizes import CONFIG
from training.tiny_v41.profile import PROFILE, write_profile
from training.tiny_v41.tasks.exercise import Answer, Exercise, Picture
from training.tiny_v41.tasks.shapes import CELL_PIXELS
from training.tiny_v41.tokenizer import write_tokenizer

Ids = npt.NDArray[np.int64]
_LIMITS = ParseLimits(max_choices=1, has_vision=True)


@dataclass(frozen=True)
class Named:
    """A shape of a picture, in tokens."""

    row: int
    """Of the picture's rows in a prompt"""
    words: tuple[int, int]
    """Its colour's token and its form's"""


@dataclass(frozen=True)
class Sample:
    """One exercise as tokens."""

    family: str
    ids: Ids
    is_answer: npt.NDArray[np.bool_]
    """Of every token: whether the model is to write it"""
    num_prompt_tokens: int
    """Before the first answer"""
    last_answer: int
    """Where the last answer begins"""
    pictures: tuple[Picture, ...] = field(default=())
    shown: tuple[tuple[Named, ...], ...] = field(default=())
    """Of each picture"""

    def __len__(self) -> int:
        return len(self.ids)


def write_text_files(directory: Path) -> None:
    """config.json, tokenizer and prompt profile: all that prompts depend on."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")
    write_tokenizer(directory)
    write_profile(directory)


class Renderer:
    """Writes exercises for the model whose text files are in a directory."""

    def __init__(self, directory: Path) -> None:
        settings = RecipeSettings(model_dir=directory, fast_tokenizer=False, prompt_encoding="auto")
        self._model = load_served_model(settings)
        ids = {t.content: t.token_id for t in read_model_files(directory).added_tokens}
        spellings: dict[str, str] = PROFILE["tokens"]
        self._tokens = {name: Special(ids[text], text) for name, text in spellings.items()}
        self._id = {name: token.token_id for name, token in self._tokens.items()}

    def sample(self, exercise: Exercise) -> Sample:
        """The whole conversation with its answers."""
        prompt = self.prompt(exercise)
        answer = self.answer(exercise.turns[-1].answer, thinks=exercise.thinks)
        ids = np.concatenate([prompt, answer])
        is_answer = self._answers(prompt)
        is_answer = np.concatenate([is_answer, np.ones(len(answer), np.bool_)])
        first = int(is_answer.argmax())
        shown = tuple(self._named(picture) for picture in exercise.pictures)
        return Sample(exercise.family, ids, is_answer, first, len(prompt), exercise.pictures, shown)

    def _named(self, picture: Picture) -> tuple[Named, ...]:
        """Rows of a picture: a start, its cells line by line with an end of line each, an end."""
        found = []
        for shape in picture.shapes:
            row = 1 + shape.row * (picture.cells + 1) + shape.column
            colour, form = (self._word(word) for word in (shape.colour, shape.form))
            found.append(Named(row, (colour, form)))
        return tuple(found)

    def _word(self, word: str) -> int:
        """The first token of a word within a sentence."""
        out = SegmentWriter(self._tokens)
        out.text(f" {word}")
        return int(self._encode(out.segments)[0])

    def prompt(self, exercise: Exercise) -> Ids:
        """Ids of the prompt of the last turn, images at full length."""
        parsed = parse_chat_value(exercise.body("tiny"), _LIMITS)
        rendered = self._model.encoding.render(parsed.conversation)
        segments: list[Segment] = []
        for segment in rendered.segments:
            repeats = 1
            if isinstance(segment, Image):
                repeats = _num_tokens(exercise.pictures[segment.index])
            segments += [segment] * repeats
        return self._encode(segments)

    def answer(self, answer: Answer, *, thinks: bool) -> Ids:
        """What the model is to write, its end included."""
        out = SegmentWriter(self._tokens)
        if thinks:
            out.text(answer.reasoning)
            out.special("think_close")
        out.text(answer.content)
        if answer.calls:
            calls = [
                ToolCall("", call.name, json.dumps(call.arguments, ensure_ascii=False))
                for call in answer.calls
            ]
            CallWriter(V41, out).block(calls)
        out.special("eos")
        return self._encode(out.segments)

    def _encode(self, segments: list[Segment]) -> Ids:
        return encode_segments(segments, self._model.encoder).astype(np.int64)

    def _answers(self, prompt: Ids) -> npt.NDArray[np.bool_]:
        """Which tokens of a prompt are earlier answers, from behind the mark that a prompt ends
        with to the end of the turn."""
        found = np.zeros(len(prompt), np.bool_)
        begins = np.flatnonzero(prompt == self._id["assistant"])[:-1] + 2
        ends = np.flatnonzero(prompt == self._id["eos"]) + 1
        for begin, end in zip(begins, ends, strict=True):
            found[begin:end] = True
        return found


def _num_tokens(picture: Picture) -> int:
    side = picture.cells * CELL_PIXELS
    plan = plan_image(side, side, ImageRules.from_config(CONFIG["vision_config"]))
    assert (plan.height, plan.width) == (side, side), "pictures are trained at their own size"
    return num_image_tokens(plan.num_rows, plan.num_columns)
