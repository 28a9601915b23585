"""The prompt profile: the fixed sentences of rorqual-tiny-v41's prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rorqual_engine.prepare.random_tokenizer import BOS, EOS, IMAGE

_DSML: dict[str, str] = {"token": "dsml"}
_PERCENTS = {"minimal": 5, "low": 20, "medium": 45, "high": 70, "xhigh": 90, "max": 100}
PROFILE: dict[str, Any] = {
    "format": "rorqual-prompt-profile",
    "version": 1,
    "encoding": "deepseek-v4.1",
    "source": "written for rorqual-tiny-v41",
    "thinks_by_default": False,
    "tokens": {
        "bos": BOS,
        "eos": EOS,
        "system": "<｜System｜>",
        "user": "<｜User｜>",
        "assistant": "<｜Assistant｜>",
        "reminder": "<｜latest_reminder｜>",
        "think_open": "<think>",
        "think_close": "</think>",
        "dsml": "｜DSML｜",
        "image": IMAGE,
    },
    "effort": {
        "default": "high",
        "lines": {word: {"percent": percent, "text": []} for word, percent in _PERCENTS.items()},
        "number": None,
    },
    "tools": {
        "before": ["\n\nTools, called inside <", _DSML, " calls>:\n"],
        "after": ["\n"],
        "update": ["\n\nMore tools:\n"],
    },
    "formats": {
        "json_object": ["\n\nAnswer with one JSON object."],
        "json_schema": ["\n\nAnswer with JSON of this schema:\n"],
    },
}


def write_profile(directory: Path) -> None:
    """Writes prompt_profile.json."""
    text = json.dumps(PROFILE, indent=2, ensure_ascii=False)
    (directory / "prompt_profile.json").write_text(text + "\n", encoding="utf-8")
