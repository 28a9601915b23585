"""Which entry of DIFFERENCES.md explains that an answer is read otherwise."""

from __future__ import annotations

import re

from tests.vectors.stream_facts import StreamFacts
from tests.vectors.stream_forms import Form, as_value

JSON_ONLY = "D-STR-01"
MARKUP_STAYS = "D-STR-02"
TEXT_STAYS = "D-STR-03"
MORE_CALLS = "D-STR-04"
VALID_ARGUMENTS = "D-STR-05"
CLOSING_IN_VALUE = "D-STR-06"
STRAY_CLOSE = "D-STR-07"
SPECIALS_UNSEEN = "D-STR-08"
STOP_COUNTS = "D-STR-09"
LATE_USAGE = "D-STR-10"
RECORDED_ERROR = "D-STR-11"
AFTER_THE_END = "D-STR-12"
BROKEN_CHARACTER = "D-STR-13"
UNKNOWN_TOOL = "D-STR-14"
PARTIAL_INPUT = "D-STR-15"
EMPTY_CUSTOM = "D-STR-16"
CUT_ARGUMENTS = "D-STR-17"
REASONING_COUNT = "D-STR-18"
BROKEN_BREAKS = "D-STR-19"
LEADING_OPEN = "D-STR-20"
REPEATED_NAME = "D-STR-21"
ATTRIBUTES = "D-STR-22"

_BROKEN_MARK = re.compile(r"<[^>\n]*\n")


def explain(facts: StreamFacts, name: str, ours: Form, theirs: Form) -> str | None:
    """The entry for one field of two forms that differ there; None when there is none."""
    error = facts.case["expect"]["error"]
    if error is not None:
        return AFTER_THE_END if facts.case.get("push_after_finish") else RECORDED_ERROR
    if name in ("content", "reasoning"):
        if _opens_reasoning(facts, ours, theirs):
            return LEADING_OPEN
        return _explain_text(facts, name, ours[name], theirs[name])
    if name == "calls":
        return _explain_calls(facts, ours, theirs)
    if facts.has_markup and any(stop.endswith("<") for stop in _stops(facts)):
        return STOP_COUNTS
    if name in ("finish", "stop"):
        return _explain_end(facts, ours, theirs)
    return _explain_usage(facts, ours, theirs)


def _explain_text(facts: StreamFacts, name: str, ours: str, theirs: str) -> str | None:
    if name == "content" and facts.is_json_mode:
        return JSON_ONLY if _is_better_json(facts, ours, theirs) else None
    shown = theirs
    for special in facts.special if facts.has_ids else ():
        shown = shown.replace(special, "")
    plain = ours.replace(facts.close, "") if name == "content" else ours
    if plain in (shown, theirs):
        return STRAY_CLOSE if plain != ours else SPECIALS_UNSEEN
    if plain == shown + "\ufffd":
        return BROKEN_CHARACTER
    if name == "reasoning" and shown.lstrip("\n").startswith("<think>"):
        return LEADING_OPEN
    if plain.rstrip("\n") == shown.rstrip("\n") and _BROKEN_MARK.search(facts.text):
        return BROKEN_BREAKS
    if facts.has_markup and plain.startswith(shown.rstrip("\n")):
        return _explain_rest(facts, plain[len(shown.rstrip("\n")) :])
    return None


def _opens_reasoning(facts: StreamFacts, ours: Form, theirs: Form) -> bool:
    """An answer without a stage begins with `<think>`: nothing else differs."""
    if facts.parsing.get("thinking_initial_stage") or not theirs["content"].startswith("<think>"):
        return False
    mine, yours = ("".join(form["reasoning"] + form["content"]) for form in (ours, theirs))
    return "".join(mine.split()) == "".join(yours.replace("<think>", "", 1).split())


def _explain_rest(facts: StreamFacts, rest: str) -> str | None:
    """For text that only we show, behind what both show."""
    if not _is_within("".join(rest.split()).rstrip("\ufffd"), facts.text):
        return None
    return MARKUP_STAYS if facts.mark in rest else TEXT_STAYS


def _is_better_json(facts: StreamFacts, ours: str, theirs: str) -> bool:
    is_list = theirs.strip().startswith("[")
    is_better = _is_json(ours) or is_list or not _is_json(theirs.strip()) or _has_stops(facts)
    return is_better and _is_within(ours, facts.text)


def _explain_calls(facts: StreamFacts, ours: Form, theirs: Form) -> str | None:
    """Their calls are found among ours, in their order; what we have more is a call they lost."""
    entries: list[str] = []
    left = list(ours["calls"])
    shown = ours["content"] + ours["reasoning"]
    for their_call in theirs["calls"]:
        same_name = [i for i, call in enumerate(left) if _is_name(call["name"], their_call["name"])]
        if not same_name:
            if _has_stops(facts) and ours["finish"] in ("stop", "tool_calls"):
                return JSON_ONLY if facts.is_json_mode else TEXT_STAYS
            if facts.mark not in shown and not _is_cut_off(facts, their_call):
                return None
            is_unknown = facts.tools is not None and _full_name(their_call) not in facts.tools
            entries.append(UNKNOWN_TOOL if is_unknown else MARKUP_STAYS)
            continue
        mine, later = left[same_name[0]], left[same_name[0] + 1 :]
        entry = _explain_call(facts, mine, their_call, later, shown)
        if entry is None:
            return None
        entries += [entry] if same_name[0] == 0 else [MORE_CALLS, entry]
        left = left[same_name[0] + 1 :]
    if left:
        entries.append(MORE_CALLS)
    return next((entry for entry in entries if entry), None)


def _is_name(ours: str, theirs: str) -> bool:
    """The reference ends a name at its first quote."""
    return ours == theirs or ours.startswith(f'{theirs}"')


def _is_cut_off(facts: StreamFacts, call: Form) -> bool:
    """True for a call in whose tag the answer ends."""
    tag = facts.text.rpartition(f"<{facts.mark}")[2]
    return "invoke" in tag and ">" not in tag and call["arguments"] in ("", {})


def _explain_call(
    facts: StreamFacts, ours: Form, theirs: Form, later: list[Form], shown: str
) -> str | None:
    """The entry for one call; an empty one when nothing differs.

    later: our calls behind it. shown: our text.
    """
    if ours == theirs:
        return ""
    mine, yours = ours["arguments"], theirs["arguments"]
    if ours["kind"] == "custom" and mine == "" and yours in ({}, "{}"):
        return EMPTY_CUSTOM
    if isinstance(mine, str) and ours["kind"] != "custom":
        return PARTIAL_INPUT if yours == {} else CUT_ARGUMENTS
    if isinstance(yours, str) or (yours == {} and facts.case["proto"] != "chat"):
        return VALID_ARGUMENTS
    if not isinstance(mine, dict):
        return None
    swallowed = {name for call in later for name in call["arguments"]}
    lost = [name for name in yours if name not in mine and f'parameter name="{name}"' in shown]
    if lost and all(mine.get(name) == yours[name] for name in yours if name not in lost):
        return MARKUP_STAYS
    return _explain_arguments(facts, mine, yours, swallowed)


def _explain_arguments(
    facts: StreamFacts, ours: Form, theirs: Form, swallowed: set[str]
) -> str | None:
    differing = [name for name in theirs if name not in ours or ours[name] != theirs[name]]
    closing = f"</{facts.mark}"
    entry = ATTRIBUTES
    for name in differing:
        if name not in ours and any(_is_name(mine, name) for mine in ours):
            continue
        held = ours[name] if name in ours else _holder(name, ours)
        if closing in str(held):
            entry = CLOSING_IN_VALUE
        elif name in ours and facts.text.count(f'name="{name}"') > 1:
            entry = REPEATED_NAME
        elif name in swallowed:
            entry = MORE_CALLS
        else:
            return None
    return entry


def _holder(name: str, arguments: Form) -> str:
    """The value in which the markup of a parameter stands."""
    texts = map(str, arguments.values())
    return next((text for text in texts if f'name="{name}"' in text), "")


def _explain_end(facts: StreamFacts, ours: Form, theirs: Form) -> str | None:
    calls = _explain_calls(facts, ours, theirs) if ours["calls"] != theirs["calls"] else None
    if {ours["finish"], theirs["finish"]} <= {"stop", "tool_calls"} and calls:
        return calls
    is_stopped = ours["finish"] in ("stop", "tool_calls") and _has_stops(facts)
    if is_stopped and facts.is_json_mode:
        return JSON_ONLY
    return TEXT_STAYS if is_stopped and facts.has_markup else None


def _explain_usage(facts: StreamFacts, ours: Form, theirs: Form) -> str | None:
    mine, yours = ours["usage"], theirs["usage"]
    if not yours:
        return None
    if (mine["prompt"], mine["cached"]) != (yours["prompt"], yours["cached"]):
        is_late = facts.case["chunks"][0]["kind"] != "ready"
        return LATE_USAGE if is_late and not yours["prompt"] else None
    if mine["completion"] < yours["completion"]:
        return STOP_COUNTS if _has_stops(facts) else None
    if mine["completion"] > yours["completion"]:
        is_held = facts.has_text and any(stop.endswith("<") for stop in _stops(facts))
        if is_held:
            return STOP_COUNTS
        return BROKEN_CHARACTER if facts.text.endswith("\ufffd") else None
    return REASONING_COUNT


def _has_stops(facts: StreamFacts) -> bool:
    return bool(_stops(facts))


def _stops(facts: StreamFacts) -> list[str]:
    given = facts.parsing.get("stop_sequences") or facts.case.get("request", {}).get("stop") or []
    return [given] if isinstance(given, str) else list(given)


def _full_name(call: Form) -> str:
    return f"{call['namespace']}::{call['name']}" if call["namespace"] else call["name"]


def _is_within(part: str, text: str) -> bool:
    """True when the text holds the characters of `part`, in their order."""
    chars = iter(text)
    return all(char in chars for char in part)


def _is_json(text: str) -> bool:
    return not isinstance(as_value(text), str)
