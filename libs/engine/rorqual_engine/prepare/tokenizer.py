"""tokenizer.json and tokenizer_config.json from GGUF vocabulary tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from rorqual_engine.errors import UnsupportedModel
from rorqual_engine.prepare.gguf_model import GgufModel

_CONTROL_TOKEN = 3
"""llama.cpp's token type of special tokens."""


def build_tokenizer(gguf: GgufModel) -> Tokenizer:
    """Byte-level BPE with the splitting rule the model was trained with.

    Raises: UnsupportedModel for another tokenizer family or an unknown splitting rule.
    """
    family, rule = gguf.field("tokenizer.ggml.model"), gguf.field("tokenizer.ggml.pre")
    if family != "gpt2" or rule not in ("smollm", "gpt-2"):
        raise UnsupportedModel(f"tokenizer {family}/{rule} is not known")
    tokens: list[str] = gguf.field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in gguf.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    specials = [
        AddedToken(token, normalized=False, special=True)
        for token, kind in zip(tokens, gguf.field("tokenizer.ggml.token_type"), strict=True)
        if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(specials)
    return tokenizer


def tokenizer_config(gguf: GgufModel) -> dict[str, Any]:
    """Chat template, special tokens and limits, as Hugging Face writes them."""
    tokens: list[str] = gguf.field("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(gguf.field(f"{gguf.architecture}.context_length")),
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    for gguf_name, hf_name in names.items():
        token_id = gguf.field(f"tokenizer.ggml.{gguf_name}_token_id")
        if token_id is not None:
            config[f"{hf_name}_token"] = tokens[token_id]
    template = gguf.field("tokenizer.chat_template")
    if template is not None:
        config["chat_template"] = template
    return config


def write_tokenizer(gguf: GgufModel, directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    build_tokenizer(gguf).save(str(directory / "tokenizer.json"))
    text = json.dumps(tokenizer_config(gguf), indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
