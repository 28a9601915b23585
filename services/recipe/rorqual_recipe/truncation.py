"""Leaving out the oldest turns of a conversation that is too long, where the client allows it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rorqual_recipe.conversation import Conversation, Message, ParsedRequest, Role
from rorqual_recipe.model import ServedModel
from rorqual_recipe.tokens.segments import encode_segments

_RULES = (Role.SYSTEM, Role.DEVELOPER)
_LEAST_ANSWER_SHARE = 4


def shortened(parsed: ParsedRequest, model: ServedModel, default_max_tokens: int) -> ParsedRequest:
    """The request with as few turns left out as make it fit, oldest first, and a warning.

    What always stays: rules at the head, the last message of the user, and the last turn after
    it. When that is too long already nothing is left out: the request is refused as it is.
    Calls and their results stay or go together. Raises: RequestRefused.
    """
    limit = model.max_context_tokens
    wanted = parsed.sampling.max_tokens
    if _num_tokens(parsed.conversation, model) <= limit - (wanted or 1):
        return parsed
    room = limit - (wanted or min(default_max_tokens, limit // _LEAST_ANSWER_SHARE))
    messages = parsed.conversation.messages
    removable = removable_turns(messages)

    def fits(num_removed: int) -> bool:
        return _num_tokens(_without(parsed.conversation, removable[:num_removed]), model) <= room

    num_removed = 1 + bisect_left(range(1, len(removable) + 1), True, key=fits)
    if num_removed > len(removable):
        return parsed
    left_out = removable[:num_removed]
    num_messages = sum(len(turn) for turn in left_out)
    warning = f"truncation: the oldest {num_messages} messages were left out"
    return replace(
        parsed,
        conversation=_without(parsed.conversation, left_out),
        warnings=[*parsed.warnings, warning],
    )


def removable_turns(messages: Sequence[Message]) -> list[range]:
    """What may go, oldest first: positions of whole exchanges, then of turns of the last one."""
    head = 0
    while head < len(messages) and messages[head].role in _RULES:
        head += 1
    asked = [at for at in range(head, len(messages)) if messages[at].role is Role.USER]
    last = asked[-1] if asked else head - 1
    exchanges = _between(sorted({head, *asked}), last) if last > head else []
    return exchanges + _turns(messages, last + 1)[:-1]


def _turns(messages: Sequence[Message], start: int) -> list[range]:
    """Messages from `start` on, each with the results that belong to it."""
    starts = [at for at in range(start, len(messages)) if messages[at].role is not Role.TOOL]
    return _between(starts, len(messages))


def _between(starts: Sequence[int], end: int) -> list[range]:
    borders = [*(start for start in starts if start < end), end]
    return [range(first, after) for first, after in pairwise(borders)]


def _without(conversation: Conversation, left_out: Sequence[range]) -> Conversation:
    gone = {position for turn in left_out for position in turn}
    kept = [m for position, m in enumerate(conversation.messages) if position not in gone]
    return replace(conversation, messages=tuple(kept))


def _num_tokens(conversation: Conversation, model: ServedModel) -> int:
    """An image counts as the largest one: what it really takes is known later only."""
    rendered = model.encoding.render(conversation)
    num_placed = len(encode_segments(rendered.segments, model.encoder))
    return num_placed + len(rendered.images) * max(0, model.max_image_tokens - 1)
