"""A model directory for the DeepSeek encodings: their special tokens, and sentences of our own."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken

from tests.support.chat_model_dir import MODEL_ID, TEMPLATE, make_chat_tokenizer

TOKENS = {
    "bos": "<｜begin▁of▁sentence｜>",
    "eos": "<｜end▁of▁sentence｜>",
    "system": "<｜System｜>",
    "user": "<｜User｜>",
    "assistant": "<｜Assistant｜>",
    "reminder": "<｜latest_reminder｜>",
    "think_open": "<think>",
    "think_close": "</think>",
    "dsml": "｜DSML｜",
    "image": "<｜image｜>",
}
_EFFORTS = {"minimal": 10, "low": 20, "medium": 50, "high": 75, "xhigh": 90, "max": 100}


def make_profile(encoding: str) -> dict[str, object]:
    """A prompt profile in which every kind of fixed text occurs."""
    dsml = {"token": "dsml"}
    return {
        "format": "rorqual-prompt-profile",
        "version": 1,
        "encoding": encoding,
        "tokens": TOKENS,
        "effort": {
            "lines": {
                effort: {"percent": percent, "text": [f"Effort {percent}.\n"]}
                for effort, percent in _EFFORTS.items()
            },
            "number": {"before": ["Effort "], "after": [".\n"]},
        },
        "tools": {
            "before": ["\n\nTools, called inside <", dsml, ">:\n"],
            "after": ["\nNo others.\n"],
            "update": ["\n\nMore tools:\n"],
        },
        "formats": {
            "json_object": ["\n\nAnswer in JSON."],
            "json_schema": ["\n\nAnswer in this shape:\n"],
        },
        "image_text": "[no image]",
    }


def make_dsml_model_dir(directory: Path, *, encoding: str, **config: object) -> Path:
    """Write what recipe reads for `encoding`; `config` adds to config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_chat_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in TOKENS.values()])
    tokenizer.save(str(directory / "tokenizer.json"))
    files = {
        "rorqual.json": {"id": MODEL_ID, "fingerprint": "0" * 32},
        "config.json": {"max_position_embeddings": 1 << 20, **config},
        "tokenizer_config.json": {"chat_template": TEMPLATE},
        "prompt_profile.json": make_profile(encoding),
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory
