"""Training text is serving text, token for token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from training.tiny_v41.rendering import Renderer, write_text_files
from training.tiny_v41.tasks import words
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Exercise
from training.tiny_v41.tasks.mixture import FAMILIES, exercise
from training.tiny_v41.tokenizer import twins_of


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("text")
    write_text_files(found)
    return found


@pytest.fixture(scope="module")
def renderer(directory: Path) -> Renderer:
    return Renderer(directory)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(directory))


def drawn(family: str, count: int = 12) -> list[Exercise]:
    return [exercise(family, Draw(str(n), held_out=False), 120, 2) for n in range(count)]


def test_any_text_comes_back_from_its_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    for text in ("Plain words, 4821.", " \n\ttabs  and   spaces ", "日本語 ünï 🐋", "{}[]<|>=+-*/"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_a_word_is_cut_alike_behind_a_space(
    directory: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    twins = dict(twins_of(directory))
    space = tokenizer.encode(" ", add_special_tokens=False)
    draw = Draw("words", held_out=True)
    for word in (*words.WORDS, *(draw.name() for _ in range(50))):
        plain, spaced = (
            tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}")
        )
        begin = [twins[plain[0]]] if plain[0] in twins else [*space, plain[0]]
        assert spaced == [*begin, *plain[1:]]


def test_every_digit_is_a_token(tokenizer: PreTrainedTokenizerFast) -> None:
    tokens = tokenizer.tokenize("code 90417")
    assert [token for token in tokens if token.isdigit()] == list("90417")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_prompt_begins_with_all_that_was_said(family: str, renderer: Renderer) -> None:
    for found in drawn(family):
        if found.thinks and not found.tools:
            continue  # what was thought before an answer is not shown again
        whole = renderer.sample(found)
        for count in range(1, len(found.turns)):
            earlier = replace(found, turns=found.turns[:count])
            said = renderer.sample(earlier).ids
            assert np.array_equal(whole.ids[: len(said)], said)


def test_answers_are_what_the_model_is_to_write(
    renderer: Renderer, tokenizer: PreTrainedTokenizerFast
) -> None:
    (found,) = drawn("recall", 1)
    sample = renderer.sample(found)
    written = tokenizer.decode(sample.ids[sample.is_answer])
    end = tokenizer.eos_token
    assert written == "".join(f"{turn.answer.content}{end}" for turn in found.turns)
    assert (
        tokenizer.decode(sample.ids[sample.last_answer :])
        == f"{found.turns[-1].answer.content}{end}"
    )


def test_a_picture_takes_as_many_tokens_as_the_tower_makes(renderer: Renderer) -> None:
    (found,) = drawn("shapes", 1)
    assert int((renderer.sample(found).ids == 2042).sum()) == 3 * 4 + 2
