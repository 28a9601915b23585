"""Texts of answers made up from a seed: reasoning, content, calls in and out of order."""

from __future__ import annotations

import random
from typing import Any

_M = "｜DSML｜"
_STAGES = (None, None, "reasoning_start", "reasoning_start", "reasoning_continuation")
_WORDS = ("Hello", " wörld", " 你好", "\n", "\n\n", " a<b", "</b>", " 😀", "<", "\n<", "</", "STOP")
_VALUES = ("x", "", 'line\n"q" \\ 文', "a<b", "3", "<b>&</b>", " padded ", "\n")
_JSON = ("1", "1.50", "-2e3", "true", "null", '{"a": [1, {"b": "</x>"}]}', "[]", '"s"', " 7\n")
_NO_JSON = ("True", "", "{'a': 1}", "x y", '{"a":')


class StreamTexts:
    """Makes one text after another; the same seed makes the same ones."""

    def __init__(self, seed: str | int) -> None:
        self.random = random.Random(seed)

    def parsing(self) -> dict[str, Any]:
        """Options in the reference's terms."""
        pick = self.random
        parsing: dict[str, Any] = {}
        stage = pick.choice(_STAGES)
        if stage:
            parsing["thinking_initial_stage"] = stage
        if pick.random() < 0.2:
            parsing["stop_sequences"] = pick.choice((["STOP"], ["STOP", "\n\n"], ["世", "好"]))
        elif pick.random() < 0.15:
            parsing["parse_json_output"] = True
        if pick.random() < 0.1:
            parsing["parse_tool_calls"] = False
        return parsing

    def text(self, parsing: dict[str, Any]) -> str:
        """An answer that goes with the options."""
        pick = self.random
        text = ""
        if "thinking_initial_stage" in parsing:
            text = self._words() + pick.choice(("</think>", "</think>\n\n", "\n</think>", ""))
        if parsing.get("parse_json_output"):
            text += self._json_answer()
        else:
            text += self._words()
        if pick.random() < 0.7:
            text += pick.choice(("\n\n", "", "\n")) + self._block()
        if pick.random() < 0.15:
            text += pick.choice(("\n\nbehind", "\n", " x", "</think>")) + self._words()
        return text[: pick.randrange(len(text) + 1)] if text and pick.random() < 0.2 else text

    def _words(self) -> str:
        return "".join(self.random.choices(_WORDS, k=self.random.randrange(6)))

    def _json_answer(self) -> str:
        value = self.random.choice(('{"a": 1}', "[1, 2]", '{"k": ["}", "\\""]}', "none", "[x]"))
        before, after = self.random.choice((("", ""), ("```json\n", "\n```"), ("Here: ", " ok")))
        return before + value + after

    def _block(self) -> str:
        pick = self.random
        space, word = pick.choice(((" ", "calls"), ("", "tool_calls")))
        calls = "".join(self._call(space) for _ in range(pick.choice((1, 1, 1, 2, 0))))
        head, tail = f"<{_M}{space}{word}>\n", f"</{_M}{space}{word}>"
        odd = pick.random()
        if odd < 0.08:
            head = ""
        elif odd < 0.16:
            tail = ""
        elif odd < 0.2:
            head += "junk\n"
        elif odd < 0.24:
            return f"<{_M}zzz> and more"
        return head + calls + tail

    def _call(self, space: str) -> str:
        pick = self.random
        name = pick.choice(("f", "get_weather", "a.b", "naïve"))
        parameters = "\n".join(self._parameter(space) for _ in range(pick.randrange(4)))
        opening = pick.choices(
            (f'name="{name}"', f"name='{name}'", f'name = "{name}"', "nam"), (20, 1, 1, 1)
        )[0]
        ending = "" if pick.random() < 0.06 else f"\n</{_M}{space}invoke>\n"
        return f"<{_M}{space}invoke {opening}>\n{parameters}{ending}"

    def _parameter(self, space: str) -> str:
        pick = self.random
        key = pick.choice(("a", "b", "c", "文", "k d", 'q"r'))
        is_text = pick.random() < 0.6
        value = pick.choice(_VALUES if is_text else _JSON * 3 + _NO_JSON)
        if pick.random() < 0.05:
            value += f"</{_M} y"
        kind = f'string="{"true" if is_text else "false"}"'
        attributes = pick.choices(
            (f'name="{key}" {kind}', f'{kind} name="{key}"', f'name="{key}"'), (20, 1, 1)
        )[0]
        return f"<{_M}{space}parameter {attributes}>{value}</{_M}{space}parameter>"
