"""Our tokenizer.json encodes as transformers' own reading of the GGUF file does."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

TEXTS = [
    "Hello, world! It's 7:45 on 12/03/2024; pi=3.14159.",
    "def f(x):\n    return x**2  # carré\n\n\tif x: pass",
    "鲸鱼在海里唱歌，価格は１２３円です。",
    "🐳🏳️‍🌈👩‍👩‍👧 emoji\u200d and \u00a0 spaces   \n\n  end ",
    "Ünïcödé café naïve Straße Ελληνικά русский עברית",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "",
    " ",
    "a" * 500,
    "they're we'll I'd don't 'tis",
    "x = {'a': [1, 2, 3]};\r\n<html>&nbsp;</html>",
]


def test_ids_equal_transformers_gguf_reading(tokenizer: Tokenizer, gguf: Path) -> None:
    reference = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert ids == reference(text, add_special_tokens=False)["input_ids"], text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_spaces_before_digits_follow_the_training_tokenizer(tokenizer: Tokenizer) -> None:
    """Digits are split off first, as in the model's original tokenizer; transformers' reading of
    GGUF has no such rule, and cuts runs of spaces before a digit differently."""
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


def test_directory_is_one_transformers_can_use(model_dir: Path, tokenizer: Tokenizer) -> None:
    loaded = AutoTokenizer.from_pretrained(model_dir)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    text = loaded.apply_chat_template(
        [{"role": "user", "content": "Hi 42"}], tokenize=False, add_generation_prompt=True
    )
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert (loaded.eos_token, loaded.pad_token) == ("<|im_end|>", "<|im_end|>")
