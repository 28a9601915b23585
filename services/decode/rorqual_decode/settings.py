"""Settings of a decode instance: the only reader of its environment."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rorqual_policy import AGENT_LIFETIME_S, CHAT_LIFETIME_S
from rorqual_policy.draft_budget import MOST_GUESSES, DrafterName, GuessSchedule
from rorqual_policy.provenance import StoredReplays
from rorqual_runtime.blockstore.settings import StoreSettings
from rorqual_runtime.settings import ModelSettings


class DecodeSettings(StoreSettings, ModelSettings):
    """How much one decode instance runs at a time, and where its blocks go."""

    model_config = SettingsConfigDict(env_prefix="RORQUAL_DECODE_")

    redundant_experts: int = Field(
        1, ge=0, description="experts that each rank holds beyond its share, without a placement"
    )
    num_pages: int = Field(1024, gt=0, description="KV pages of 128 tokens, touched lazily")
    num_windows: int = Field(
        96, gt=0, description="window slots; a generation keeps its own until its blocks are stored"
    )
    window_keep_s: float = Field(
        180.0, gt=0, description="how long the window state behind an answer's blocks is kept"
    )
    window_keep_bytes: int = Field(
        256 << 20, ge=0, description="memory for kept window states; the least valuable leave"
    )
    max_running: int = Field(64, gt=0, description="generations that run at a time")
    drafter: DrafterName = Field(
        "auto",
        description="who guesses tokens for a step to check: none, ngram or dspark; "
        "auto: dspark where a draft module is loaded, else none",
    )
    num_guesses: int = Field(
        5, ge=1, le=MOST_GUESSES, description="most guesses about one sequence a step"
    )
    guess_schedule: GuessSchedule = Field(
        "current",
        description="guesses checked by their own confidences, by lagged ones, or always all: "
        "current, lagged, fixed",
    )
    handover_timeout_s: float = Field(
        10.0, gt=0, description="longest a handover may take, from request to reply"
    )
    growth_tokens: int = Field(
        1024,
        gt=0,
        description="output tokens for which KV pages are reserved ahead, at a handover and later",
    )
    paused_bytes: int = Field(
        1 << 30,
        ge=0,
        description="host memory for generations that step aside while KV pages are short",
    )
    drain_grace_s: float = Field(
        60.0,
        ge=0,
        description="how long running generations may end here after SIGTERM before they are moved",
    )
    emitted_keep_s: float = Field(
        90.0,
        ge=0,
        description="how long a finished generation's tokens can be asked for: more than an outage",
    )
    max_kept_choices: int = Field(
        1024,
        ge=0,
        description="ended choices of requests with several that are kept until their deadline",
    )
    chat_lifetime_s: float = Field(
        CHAT_LIFETIME_S, gt=0, description="how long a block of chat traffic is stored"
    )
    agent_lifetime_s: float = Field(
        AGENT_LIFETIME_S, gt=0, description="how long a block of agent traffic is stored"
    )
    block_queue_blocks: int = Field(
        512, gt=0, description="finished blocks that may wait for the store; more are dropped"
    )
    stored_replays: StoredReplays = Field(
        StoredReplays.ALL,
        description="blocks behind a replay that are stored: all, continuation, none",
    )
    register_batch_blocks: int = Field(
        256, gt=0, description="most blocks registered with kvmeta in one message"
    )
    register_backlog_blocks: int = Field(
        8192, gt=0, description="stored blocks kept for registration while kvmeta is away"
    )
