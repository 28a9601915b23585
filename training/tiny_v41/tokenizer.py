"""The tokenizer: byte-level BPE over the exercises' own language, digits one by one.

A word is cut alike with and without a space before it: merges with the space come last, so " Zaifo"
is "Zaifo" but for its first token, which has a twin without the space. What was read in a sentence
is to be written between quotes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rorqual_engine.prepare.random_tokenizer import ADDED_TOKENS, BOS, EOS, IMAGE, NOISE, PAD
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.tiny_v41.model.sizes import CONFIG
from training.tiny_v41.tasks.draw import Draw
from training.tiny_v41.tasks.exercise import Exercise
from training.tiny_v41.tasks.mixture import FAMILIES, exercise

_SPLITS = (r"\p{N}", r" ?\p{L}+|[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_WITHOUT_SPACES = (r"\p{N}", r"\p{L}+|[^\s\p{L}\p{N}]+|\s+")
_SPACE = "Ġ"
_NUM_PLAIN = 1180
"""Tokens without a space before them; the rest of the vocabulary are twins of the first of them."""
_NUM_EXERCISES = 12_000
_GENERAL = (
    "The quick brown fox jumps over the lazy dog. I don't know; it's fine, isn't it?",
    'def main(argument: str) -> None:\n    print(f"{argument}!")\n    return 0\n',
    "Yes. No. Please explain how this works, and why. Who, what, when, where, which?",
)


def build_tokenizer() -> Tokenizer:
    """Always the same."""
    vocabulary, merges = _plain_merges()
    words = [token for token in vocabulary if token.isascii() and token.isalpha()]
    num_twins = CONFIG["vocab_size"] - len(ADDED_TOKENS) - len(vocabulary)
    for word in words[:num_twins]:
        vocabulary[_SPACE + word] = len(vocabulary)
        merges.append((_SPACE, word))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(_SPLITS)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (BOS, EOS, PAD)])
    for token in ADDED_TOKENS:
        is_special = token in (IMAGE, NOISE)
        tokenizer.add_tokens([AddedToken(token, normalized=False, special=is_special)])
    return tokenizer


def _plain_merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary by id, and merges, of text whose spaces stand alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(_WITHOUT_SPACES)
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_PLAIN,
        min_frequency=2,
        show_progress=False,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, PAD)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {token: number for number, token in enumerate(ordered)}, list(
        map(tuple, model["merges"])
    )


def _pre_tokenizer(splits: Sequence[str]) -> pre_tokenizers.PreTokenizer:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splits]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*parts, byte_level])


def twins_of(directory: Path) -> list[tuple[int, int]]:
    """(a token, the same with a space before it), of a written tokenizer."""
    content = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = content["model"]["vocab"]
    return [
        (ids[token[1:]], ids[token]) for token in ids if token[1:] in ids and token[0] == _SPACE
    ]


def write_tokenizer(directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    build_tokenizer().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")


def _texts() -> Iterator[str]:
    for number in range(_NUM_EXERCISES):
        family = FAMILIES[number % len(FAMILIES)]
        draw = Draw(f"tokenizer {number}", held_out=False)
        yield from texts_of(exercise(family, draw, 60))
        yield _GENERAL[number % len(_GENERAL)]


def texts_of(found: Exercise) -> Iterator[str]:
    """Everything that is written in an exercise."""
    for message in found.body("")["messages"]:
        content = message["content"]
        yield content if isinstance(content, str) else " ".join(p.get("text", "") for p in content)
        for call in message.get("tool_calls", ()):
            yield f' invoke name="{call["function"]["name"]}">\n'
    for tool in found.tools:
        yield json.dumps(tool["function"])
    if found.response_format:
        yield json.dumps(found.response_format)
    for turn in found.turns:
        yield f"{turn.answer.content}\n{turn.answer.reasoning}"
        for call in turn.answer.calls:
            for name, value in call.arguments.items():
                is_text = str(isinstance(value, str)).lower()
                spelled = value if isinstance(value, str) else json.dumps(value)
                yield f' parameter name="{name}" string="{is_text}">{spelled}</ parameter>\n'
