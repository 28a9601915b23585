"""Logged decisions of live services, made again by the same policy calls."""

import dataclasses
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from rorqual_policy import choose_decode, choose_vision, decide_admission, plan_chunks
from rorqual_policy.drain_choice import choose_drained
from rorqual_policy.expert_rebalance import decide_rebalance
from rorqual_policy.prefill_line import choose_pull
from rorqual_policy.prefix_fetch import choose_fetch
from rorqual_policy.scaling import desired_counts

POLICIES: Mapping[str, Callable[..., Any]] = {
    "admission": decide_admission,
    "chunks": plan_chunks,
    "drain": choose_drained,
    "experts": decide_rebalance,
    "fetch": choose_fetch,
    "placement": choose_decode,
    "pull": choose_pull,
    "scaling": desired_counts,
    "vision": choose_vision,
}
"""By the kind that the log names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise."""

    kind: str
    logged: Any
    replayed: Any


@dataclass(slots=True)
class DecisionReplay:
    """What a log's decisions came to."""

    counts: Counter[str] = field(default_factory=Counter)
    """Decisions that were made again, by kind."""
    differences: list[Difference] = field(default_factory=list)
    num_unknown: int = 0
    """Lines with a kind that no policy goes by."""


def replay_decisions(lines: Iterable[Mapping[str, Any]]) -> DecisionReplay:
    """Make every decision among log lines again; lines that are none are passed over.

    Raises: ValueError when an input does not fit its policy function.
    """
    result = DecisionReplay()
    for line in lines:
        if line.get("message") != "decision" or "kind" not in line:
            continue
        kind = str(line["kind"])
        if kind not in POLICIES:
            result.num_unknown += 1
            continue
        result.counts[kind] += 1
        try:
            logged, replayed = _again(POLICIES[kind], line)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__} {error}"
            raise ValueError(f"a {kind!r} decision does not fit its policy: {reason}") from None
        if logged != replayed:
            result.differences.append(Difference(kind, logged, replayed))
    return result


def _again(policy: Callable[..., Any], line: Mapping[str, Any]) -> tuple[Any, Any]:
    """The decision as logged, and as it is made now."""
    hints = get_type_hints(policy)
    returned = hints.pop("return")
    given = [
        from_plain(kind, value)  # what was not given keeps its default
        for kind, value in zip(hints.values(), line["input"], strict=False)
    ]
    return from_plain(returned, line["decision"]), policy(*given)


def from_plain(wanted: Any, value: Any) -> Any:
    """A value of a policy's type from what JSON held of it. Raises: ValueError."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        options = [option for option in inner if option is not type(None)]
        return None if value is None else from_plain(options[0], value)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return tuple(from_plain(inner[0], item) for item in value)
    if origin is tuple:
        return tuple(from_plain(kind, item) for kind, item in zip(inner, value, strict=True))
    if origin in (list, Sequence):
        return [from_plain(inner[0], item) for item in value]
    if origin in (set, frozenset):
        return frozenset(from_plain(inner[0], item) for item in value)
    if origin in (dict, Mapping):
        return {from_plain(inner[0], k): from_plain(inner[1], v) for k, v in value.items()}
    return _plain_class(wanted, value)


def _plain_class(wanted: Any, value: Any) -> Any:
    if isinstance(wanted, type) and dataclasses.is_dataclass(wanted):
        hints = get_type_hints(wanted)
        return wanted(**{name: from_plain(hints[name], item) for name, item in value.items()})
    if isinstance(wanted, type) and issubclass(wanted, tuple):  # a named one
        hints = get_type_hints(wanted)
        fields = zip(hints.values(), value, strict=True)
        return wanted(*(from_plain(kind, item) for kind, item in fields))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    if wanted is bytes:
        return bytes.fromhex(value)
    if wanted is float:
        return float(value)
    return value
