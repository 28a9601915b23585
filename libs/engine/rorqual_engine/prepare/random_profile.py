"""The prompt profile of the random model: every kind of fixed text, in our own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rorqual_engine.prepare.random_tokenizer import BOS, EOS, IMAGE

_DSML: dict[str, str] = {"token": "dsml"}
_EFFORTS: dict[str, tuple[int, list[str]]] = {
    "minimal": (5, ["Thinking: as little as possible.\n\n"]),
    "low": (20, ["Thinking: little.\n\n"]),
    "medium": (45, ["Thinking: some.\n\n"]),
    "high": (70, []),
    "xhigh": (90, ["Thinking: a lot.\n\n"]),
    "max": (100, ["Thinking: everything there is to think.\n\n"]),
}
PROFILE: dict[str, Any] = {
    "format": "rorqual-prompt-profile",
    "version": 1,
    "encoding": "deepseek-v4.1",
    "source": "written for random-v41",
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
        "lines": {
            effort: {"percent": percent, "text": text}
            for effort, (percent, text) in _EFFORTS.items()
        },
        "number": {"before": ["Thinking: "], "after": [" of 100.\n\n"]},
    },
    "tools": {
        "before": ["\n\nThese functions can be called, inside <", _DSML, "calls>:\n"],
        "after": ["\nThere are no others.\n"],
        "update": ["\n\nFrom here on there are also:\n"],
    },
    "formats": {
        "json_object": ["\n\nThe answer is one JSON object."],
        "json_schema": ["\n\nThe answer is JSON of this schema:\n"],
    },
}


def write_random_profile(directory: Path) -> None:
    """Writes prompt_profile.json."""
    text = json.dumps(PROFILE, indent=2, ensure_ascii=False)
    (directory / "prompt_profile.json").write_text(text + "\n", encoding="utf-8")
