"""Text for the recipe bench, and a tokenizer trained on text that the bench does not use.

Real prose and code: the sources of this Python's standard library, half of the files for training,
half for the bench; one part in ten is made-up Chinese. Nothing is fetched, and the same Python
gives the same text.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from rorqual_recipe.tokens.patterns import DEEPSEEK, DEEPSEEK_CJK, DEEPSEEK_DIGITS
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE = 32_000
_TRAINING_CHARS = 8 << 20
_CHINESE_BYTES_SHARE = 0.1
_NUM_CHINESE_WORDS = 3000


class Corpus:
    """An endless text, taken piece by piece; part 0 trains, part 1 is for the bench."""

    def __init__(self, part: int) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        files = [p for p in library.rglob("*.py") if "site-packages" not in p.parts]
        self._files = sorted(files)[part::2]
        self._pieces = self._paragraphs(random.Random(part))
        self._rest = ""

    def take(self, num_bytes: int) -> str:
        """The next num_bytes of text (as UTF-8, up to a few characters)."""
        taken: list[str] = []
        while num_bytes > 0:
            text = self._rest or next(self._pieces)
            encoded = text.encode()[:num_bytes].decode(errors="ignore")
            taken.append(encoded or text[:1])
            self._rest = text[len(taken[-1]) :]
            num_bytes -= len(taken[-1].encode())
        return "".join(taken)

    def _paragraphs(self, rng: random.Random) -> Iterator[str]:
        words = _chinese_words()
        num_foreign = num_chinese = 0
        while True:
            rng.shuffle(self._files)
            for path in self._files:
                text = path.read_text(encoding="utf-8", errors="replace")
                num_foreign += len(text)
                yield text
                while num_chinese < _CHINESE_BYTES_SHARE * num_foreign:
                    paragraph = _chinese_paragraph(rng, words)
                    num_chinese += len(paragraph.encode())
                    yield paragraph


def _chinese_words() -> list[str]:
    rng = random.Random(7)
    common = [chr(code) for code in rng.sample(range(0x4E00, 0x9FA5), 1500)]
    return [
        "".join(rng.choices(common, k=rng.choice((1, 2, 2, 3)))) for _ in range(_NUM_CHINESE_WORDS)
    ]


def _chinese_paragraph(rng: random.Random, words: list[str]) -> str:
    """Sentences of words, of which few are frequent and most are rare."""
    weights = [1 / (rank + 1) for rank in range(len(words))]
    chosen = rng.choices(words, weights, k=400)
    return "".join(word + rng.choice(("", "", "", "", "", "，", "。")) for word in chosen) + "。\n"


def train_tokenizer(special_tokens: list[str]) -> dict[str, object]:
    """A tokenizer.json: byte-level BPE behind DeepSeek's way of splitting text."""
    tokenizer = Tokenizer(models.BPE())
    stages = (DEEPSEEK_DIGITS, DEEPSEEK_CJK, DEEPSEEK)
    splits = [pre_tokenizers.Split(Regex(stage), "isolated") for stage in stages]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = Corpus(0)
    tokenizer.train_from_iterator(
        (corpus.take(1 << 16) for _ in range(_TRAINING_CHARS >> 16)), trainer
    )
    tokenizer.add_special_tokens(special_tokens)
    content: dict[str, object] = json.loads(tokenizer.to_str())
    return content
