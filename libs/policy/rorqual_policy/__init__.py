"""Pure decisions of Rorqual: standard library only."""

from rorqual_policy.admission import (
    Admission,
    QueueState,
    decide_admission,
    estimate_retry_after_s,
)
from rorqual_policy.blocks import (
    AGENT_LIFETIME_S,
    BLOCK_TOKENS,
    CHAT_LIFETIME_S,
    KEY_BYTES,
    ImageSpan,
    block_keys,
    block_lifetime_s,
    extend_keys,
    root_key,
)
from rorqual_policy.buckets import Bucket, choose_bucket
from rorqual_policy.chunking import Chunk, StepPlan, WaitingSequence, plan_chunks
from rorqual_policy.demand import CounterSource, DemandWindow, demand_per_s, observe_counter
from rorqual_policy.drain_choice import DrainCandidate, DrainChoice, choose_drained
from rorqual_policy.eviction import StoredBlock, ValueEviction
from rorqual_policy.load_view import InstanceReport, LoadView
from rorqual_policy.placement import (
    DecodeInstance,
    PlacementDecision,
    PlacementOutcome,
    PlacementParams,
    PlacementRequest,
    choose_decode,
    estimate_step_s,
    num_pages_needed,
)
from rorqual_policy.scaling import (
    ScalingDecision,
    ScalingParams,
    ScalingState,
    ServiceBounds,
    Target,
    desired_counts,
)
from rorqual_policy.scaling_load import (
    FleetDemand,
    FlowDemand,
    HoldDemand,
    InstanceCounts,
    slots_within,
)
from rorqual_policy.vision_placement import (
    ImageRequest,
    VisionInstance,
    choose_vision,
    image_work,
)

__all__ = [
    "AGENT_LIFETIME_S",
    "BLOCK_TOKENS",
    "CHAT_LIFETIME_S",
    "KEY_BYTES",
    "Admission",
    "Bucket",
    "Chunk",
    "CounterSource",
    "DecodeInstance",
    "DemandWindow",
    "DrainCandidate",
    "DrainChoice",
    "FleetDemand",
    "FlowDemand",
    "HoldDemand",
    "ImageRequest",
    "ImageSpan",
    "InstanceCounts",
    "InstanceReport",
    "LoadView",
    "PlacementDecision",
    "PlacementOutcome",
    "PlacementParams",
    "PlacementRequest",
    "QueueState",
    "ScalingDecision",
    "ScalingParams",
    "ScalingState",
    "ServiceBounds",
    "StepPlan",
    "StoredBlock",
    "Target",
    "ValueEviction",
    "VisionInstance",
    "WaitingSequence",
    "block_keys",
    "block_lifetime_s",
    "choose_bucket",
    "choose_decode",
    "choose_drained",
    "choose_vision",
    "decide_admission",
    "demand_per_s",
    "desired_counts",
    "estimate_retry_after_s",
    "estimate_step_s",
    "extend_keys",
    "image_work",
    "num_pages_needed",
    "observe_counter",
    "plan_chunks",
    "root_key",
    "slots_within",
]
