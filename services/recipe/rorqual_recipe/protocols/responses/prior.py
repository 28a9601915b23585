"""What a request builds on: earlier responses, items it refers to, the key of sealed reasoning."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rorqual_runtime.errors import Unavailable

from rorqual_recipe.problems import Problem
from rorqual_recipe.sealing import NO_BINDING, SealBinding, SealBroken, Sealer

_ITEM_ID = re.compile(r"[a-z]+_(.+)_(?:in)?\d+")
_ID_PREFIXES = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "tool_search_call": "tsc",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
    "tool_search_output": "tso",
    "additional_tools": "at",
}

NO_STORE = "no responses are stored here"


@dataclass(frozen=True, slots=True)
class Prior:
    """history: items of the response that is continued. known_items: by id, for references.

    sealer: or why there is none just now; None when the request needs none.
    problems: found while looking; they are told with the body's own.
    why_not_stored: "" when the answer can be kept. num_bytes: size of the earlier items.
    """

    request_id: str = ""
    binding: SealBinding = NO_BINDING
    sealer: Sealer | Unavailable | None = None
    now_unix_s: float = 0.0
    history: Sequence[Mapping[str, Any]] = ()
    known_items: Mapping[str, Any] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    why_not_stored: str = NO_STORE
    num_bytes: int = 0

    def open_seal(self, sealed: str) -> str:
        """Reasoning that an earlier answer sealed. Raises: SealBroken; Unavailable."""
        return self.working_sealer().open(sealed, self.binding, self.now_unix_s)

    def working_sealer(self) -> Sealer:
        """The sealer. Raises: SealBroken where nothing is sealed; Unavailable."""
        if isinstance(self.sealer, Unavailable):
            raise self.sealer
        if self.sealer is None:
            raise SealBroken("reasoning is not sealed here")
        return self.sealer


NO_PRIOR = Prior()


def response_id_of(request_id: str) -> str:
    """The response that a request makes."""
    return f"resp_{request_id}"


def response_of_item(item_id: str) -> str | None:
    """The response an item belongs to, as its id tells."""
    match = _ITEM_ID.fullmatch(item_id)
    return response_id_of(match.group(1)) if match else None


def item_prefix(item: Mapping[str, Any]) -> str:
    """How ids of such items begin."""
    return _ID_PREFIXES.get(str(item.get("type")), "msg")


def items_to_keep(prior: Prior, new: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The conversation up to the answer, every item with an id and in the form it is listed in."""
    kept = [
        _listed(item, f"{item_prefix(item)}_{prior.request_id}_in{index}")
        for index, item in enumerate(new)
    ]
    return [*prior.history, *kept]


def _listed(item: Mapping[str, Any], new_id: str) -> Mapping[str, Any]:
    item_id = item.get("id")
    listed = {**item, "id": item_id if isinstance(item_id, str) and item_id else new_id}
    if item_prefix(item) != "msg":
        return listed
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        extra: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
        content = [{"type": kind, "text": content, **extra}]
    return {"status": "completed", **listed, "type": "message", "content": content}
