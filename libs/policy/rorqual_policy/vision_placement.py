"""Which vision instance encodes an image: one that finishes it in the fewest steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from rorqual_policy.placement import PlacementDecision, PlacementOutcome

ATTENTION_PATCHES = 6272
"""Patches at which attention costs as much as the matrices. Source: the published tower's sizes:
per patch and layer 2 * (4 * 1024^2 + 3 * 1024 * 2816) operations against 4 * 1024 a patch seen."""


@dataclass(frozen=True, slots=True)
class VisionInstance:
    """A live instance: what it has to encode, and how much it takes into one step."""

    instance_id: str
    queued_work: int
    """See `image_work`, of everything asked for and not answered."""
    step_work: int
    """Work of a full step; 0 = one image a step."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image that wants its embeddings."""

    digest: bytes
    num_patches: int
    excluded_ids: frozenset[str] = field(default_factory=frozenset)
    """Instances that just failed it."""


def image_work(num_patches: int) -> int:
    """Cost of an image in patches: those of a large one are dearer, they see more of each other."""
    return num_patches + num_patches * num_patches // ATTENTION_PATCHES


def choose_vision(instances: Sequence[VisionInstance], request: ImageRequest) -> PlacementDecision:
    """The instance that has the image in the fewest steps.

    What joins a step that isn't full costs no step, so instances that differ by less are equal.
    Equal ones are told apart by the image: the same one goes where its embeddings may still be.
    """
    if not instances:
        return PlacementDecision(None, PlacementOutcome.NO_INSTANCE, "no vision instance is alive")
    included = [i for i in instances if i.instance_id not in request.excluded_ids]
    if not included:
        reason = f"all {len(instances)} vision instances were excluded"
        return PlacementDecision(None, PlacementOutcome.ALL_EXCLUDED, reason)
    steps = [_num_steps(instance, request.num_patches) for instance in included]
    fewest = min(steps)
    equal = [i for i, num in zip(included, steps, strict=True) if num == fewest]
    best = max(equal, key=lambda i: (_affinity(request.digest, i.instance_id), i.instance_id))
    reason = f"done in {fewest} steps, {len(equal)} of {len(included)} equal"
    return PlacementDecision(best.instance_id, PlacementOutcome.PLACED, reason)


def _num_steps(instance: VisionInstance, num_patches: int) -> int:
    work = instance.queued_work + image_work(num_patches)
    return -(-work // (instance.step_work or max(1, image_work(num_patches))))


def _affinity(digest: bytes, instance_id: str) -> bytes:
    return blake2b(instance_id.encode(), key=digest[:32], digest_size=8).digest()
