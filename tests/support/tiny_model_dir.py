"""A model directory with a byte-level tokenizer of a few hundred tokens and no weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

EOS_TOKEN_ID = 0
VOCAB_SIZE = 272
"""Longer than the tokenizer, as padded logits are."""


def make_tokenizer() -> Tokenizer:
    """All 256 bytes and two merges, plus one special end token with id 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<|end|>", *alphabet, '{"', '":'])}
    merges = [("{", '"'), ('"', ":")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def make_model_dir(directory: Path, **config: object) -> Path:
    """Write tokenizer.json and config.json; `config` adds to or replaces its fields."""
    directory.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save(str(directory / "tokenizer.json"))
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "eos_token_id": EOS_TOKEN_ID,
        **config,
    }
    (directory / "config.json").write_text(json.dumps(fields))
    return directory
