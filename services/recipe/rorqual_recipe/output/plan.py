"""How one answer is to be read."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from rorqual_recipe.conversation import ConstraintKind, ParsedRequest, Tool
from rorqual_recipe.encodings.base import (
    DSML_MARK,
    NO_TOOL_FORMAT,
    AnswerStage,
    RenderedPrompt,
)
from rorqual_recipe.output.calls import call_format
from rorqual_recipe.output.marks import REASONING_CLOSE, REASONING_OPEN, TOOL_MARK

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CALL_ID_CHARS = 24
_CALL_ID_KEY = b"rorqual tool call id"


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What the prompt and the client decided about one choice.

    reasoning_marks: spellings that open and close reasoning; None = the model has none.
    tools: what may be called, by printed name; None = not known, every name is taken.
    json_mode: only the JSON value of the content is wanted and nothing enforces that.
    call_id_seed: makes ids of tool calls; the same seed gives the same ids.
    """

    stage: AnswerStage = AnswerStage.CONTENT
    reasoning_marks: tuple[str, str] | None = None
    tool_format: str = NO_TOOL_FORMAT
    dsml_mark: str = DSML_MARK
    starts_in_tool_calls: bool = False
    tools: Mapping[str, Tool] | None = field(default=None, hash=False)
    stops: tuple[str, ...] = ()
    json_mode: bool = False
    logprobs: bool = False
    call_id_seed: str = ""


def mark_spellings(plan: AnswerPlan) -> dict[str, str]:
    """Spelling of every mark that means something in this answer."""
    spellings: dict[str, str] = {}
    if plan.reasoning_marks is not None:
        spellings[REASONING_OPEN], spellings[REASONING_CLOSE] = plan.reasoning_marks
    tool_format = call_format(plan.tool_format)
    if tool_format is not None:
        spellings |= tool_format.marks
        if plan.tool_format.startswith("dsml"):
            spellings[TOOL_MARK] = plan.dsml_mark
    return spellings


def plan_answer(
    parsed: ParsedRequest, rendered: RenderedPrompt, *, is_enforced: bool, call_id_seed: str
) -> AnswerPlan:
    """The plan of one choice. is_enforced: a grammar holds the answer to the asked-for shape."""
    shape = parsed.conversation.response_format
    wants_json = shape is not None and shape.kind is ConstraintKind.JSON_OBJECT
    return AnswerPlan(
        stage=rendered.stage,
        reasoning_marks=rendered.reasoning_marks,
        tool_format=rendered.tool_format,
        dsml_mark=rendered.dsml_mark,
        starts_in_tool_calls=rendered.starts_in_tool_calls,
        tools=rendered.tools,
        stops=parsed.stop,
        json_mode=wants_json and not is_enforced,
        logprobs=parsed.sampling.logprobs,
        call_id_seed=call_id_seed,
    )


def tool_call_id(seed: str, index: int) -> str:
    """`call_` and 24 characters that depend on seed and index only."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), key=_CALL_ID_KEY, digest_size=24).digest()
    number = int.from_bytes(digest)
    chars = []
    for _ in range(_CALL_ID_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        chars.append(_ALPHABET[digit])
    return "call_" + "".join(chars)
