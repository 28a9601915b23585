"""Which decode instance takes a request: the one whose step stays shortest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from zlib import crc32

from rorqual_policy.blocks import BLOCK_TOKENS


@dataclass(slots=True)
class DecodeInstance:
    """Load of one live decode instance: its last report plus what was placed since then.

    Whoever keeps the loads changes them in place; a decision only reads.
    """

    instance_id: str
    num_running: int
    max_running: int
    kv_tokens: int
    """Context tokens of all running requests."""
    num_free_pages: int
    """Negative while more was placed than it may have room for."""
    num_total_pages: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What has to find a place."""

    request_id: str
    num_context_tokens: int
    max_new_tokens: int
    excluded_ids: frozenset[str] = field(default_factory=frozenset)
    """Instances that just refused it."""


@dataclass(frozen=True, slots=True)
class PlacementParams:
    """Step time model: base_s + per_request_s * requests + per_kv_token_s * KV tokens.

    Source of the defaults: the scheduling study's decode model (10 ms, 20 us a request, the KV term
    equal to the request term at 64K context); only the ratio of the last two decides.
    """

    base_s: float = 0.010
    per_request_s: float = 20e-6
    per_kv_token_s: float = 20e-6 / 65536
    reserved_new_tokens: int = 1 << 30
    """Output tokens that a decode instance reserves pages for when it takes a request, at most."""
    max_context_tokens: int = 0
    """No request grows longer than this, whatever it asks for; 0 = not known."""
    num_deciders: int = 1
    """Routers that decide at the same time on the same reports. Each expects about one unseen
    placement by each other one, so instances closer than half of that are equal to it."""


class PlacementOutcome(StrEnum):
    """Why an instance was chosen, or why none was."""

    PLACED = "placed"
    NO_INSTANCE = "no_instance"
    ALL_EXCLUDED = "all_excluded"
    NO_ROOM = "no_room"
    TOO_LARGE = "too_large"
    """No live instance could hold it even when idle: waiting does not help."""


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """The chosen instance, None unless PLACED, and why."""

    instance_id: str | None
    outcome: PlacementOutcome
    reason: str


def estimate_step_s(num_running: int, kv_tokens: int, params: PlacementParams) -> float:
    """Seconds that one decode step takes with this many requests and context tokens."""
    return params.base_s + params.per_request_s * num_running + params.per_kv_token_s * kv_tokens


def num_pages_needed(request: PlacementRequest, params: PlacementParams) -> int:
    """Free pages that an instance must have to take this request: context and reserved output,
    less the last token, whose KV nobody reads."""
    num_context, num_new = request.num_context_tokens, request.max_new_tokens
    if num_new > params.reserved_new_tokens:
        num_new = params.reserved_new_tokens
    num_tokens = num_context + num_new - 1 if num_new > 1 else num_context
    if 0 < params.max_context_tokens <= num_tokens:
        num_tokens = max(num_context, params.max_context_tokens - 1)
    return -(-num_tokens // BLOCK_TOKENS)


def has_room(instance: DecodeInstance, request: PlacementRequest, num_pages: int) -> bool:
    """Whether the instance could take the request, which needs so many pages."""
    is_free = instance.num_running < instance.max_running and instance.num_free_pages >= num_pages
    return is_free and instance.instance_id not in request.excluded_ids


def choose_decode(
    instances: Sequence[DecodeInstance],
    request: PlacementRequest,
    params: PlacementParams | None = None,
) -> PlacementDecision:
    """Decode instance with the shortest estimated step once the request has joined it.

    Only instances with a free running slot and free pages for the context and its first output are
    candidates. Equal ones are told apart by a hash of (request, instance): the same on every
    router and in every replay, yet spread over the instances.
    """
    params = params or PlacementParams()
    num_pages = num_pages_needed(request, params)
    roomy = [i for i in instances if has_room(i, request, num_pages)]
    if len(roomy) == 1:
        return PlacementDecision(roomy[0].instance_id, PlacementOutcome.PLACED, "shortest step")
    if not roomy:
        return _refusal(instances, request, num_pages)
    costs = [estimate_step_s(i.num_running, i.kv_tokens, params) for i in roomy]
    own_s = params.per_request_s + params.per_kv_token_s * request.num_context_tokens
    limit_s = min(costs) + own_s * (0.5 * (params.num_deciders - 1) + 1e-9)
    equal = [i for i, cost_s in zip(roomy, costs, strict=True) if cost_s <= limit_s]
    best = min(equal, key=_tie_order(request.request_id))
    reason = "shortest step" if len(equal) == 1 else f"one of {len(equal)} equally short steps"
    return PlacementDecision(best.instance_id, PlacementOutcome.PLACED, reason)


def _tie_order(request_id: str) -> Callable[[DecodeInstance], tuple[int, str]]:
    seed = crc32(request_id.encode())

    def order(instance: DecodeInstance) -> tuple[int, str]:
        # crc32 is linear; the multiplication keeps the order of instances from repeating.
        mixed = (crc32(instance.instance_id.encode(), seed) * 0x9E3779B1) & 0xFFFFFFFF
        return mixed, instance.instance_id

    return order


def _refusal(
    instances: Sequence[DecodeInstance], request: PlacementRequest, num_pages: int
) -> PlacementDecision:
    included = [i for i in instances if i.instance_id not in request.excluded_ids]
    if not instances:
        return PlacementDecision(None, PlacementOutcome.NO_INSTANCE, "no decode instance is alive")
    if all(i.num_total_pages < num_pages for i in instances):
        largest = max(i.num_total_pages for i in instances)
        reason = f"needs {num_pages} pages, the largest decode instance has {largest}"
        return PlacementDecision(None, PlacementOutcome.TOO_LARGE, reason)
    if not included:
        reason = f"all {len(instances)} decode instances were excluded"
        return PlacementDecision(None, PlacementOutcome.ALL_EXCLUDED, reason)
    num_full = sum(i.num_running >= i.max_running for i in included)
    reason = (
        f"of {len(included)} decode instances {num_full} have no free slot, "
        f"{len(included) - num_full} lack {num_pages} free pages"
    )
    return PlacementDecision(None, PlacementOutcome.NO_ROOM, reason)
