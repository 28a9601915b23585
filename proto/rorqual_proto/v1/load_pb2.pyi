from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadReport(_message.Message):
    __slots__ = ("service", "instance_id", "incarnation", "seq", "sent_unix_s", "draining", "num_active_requests", "num_held_leases", "num_used_pages", "num_total_pages", "num_used_windows", "num_total_windows", "prefill", "decode", "router", "recipe", "vision", "kvmeta", "hit_path", "relay", "model_fingerprint", "max_context_tokens", "experts", "cancelled_total")
    class CancelledTotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SENT_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_LEASES_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_USED_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    VISION_FIELD_NUMBER: _ClassVar[int]
    KVMETA_FIELD_NUMBER: _ClassVar[int]
    HIT_PATH_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    service: str
    instance_id: str
    incarnation: int
    seq: int
    sent_unix_s: float
    draining: bool
    num_active_requests: int
    num_held_leases: int
    num_used_pages: int
    num_total_pages: int
    num_used_windows: int
    num_total_windows: int
    prefill: PrefillLoad
    decode: DecodeLoad
    router: RouterLoad
    recipe: RecipeLoad
    vision: VisionLoad
    kvmeta: KvmetaLoad
    hit_path: HitPathLoad
    relay: RelayLoad
    model_fingerprint: str
    max_context_tokens: int
    experts: ExpertLoad
    cancelled_total: _containers.ScalarMap[str, int]
    def __init__(self, service: _Optional[str] = ..., instance_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., sent_unix_s: _Optional[float] = ..., draining: _Optional[bool] = ..., num_active_requests: _Optional[int] = ..., num_held_leases: _Optional[int] = ..., num_used_pages: _Optional[int] = ..., num_total_pages: _Optional[int] = ..., num_used_windows: _Optional[int] = ..., num_total_windows: _Optional[int] = ..., prefill: _Optional[_Union[PrefillLoad, _Mapping]] = ..., decode: _Optional[_Union[DecodeLoad, _Mapping]] = ..., router: _Optional[_Union[RouterLoad, _Mapping]] = ..., recipe: _Optional[_Union[RecipeLoad, _Mapping]] = ..., vision: _Optional[_Union[VisionLoad, _Mapping]] = ..., kvmeta: _Optional[_Union[KvmetaLoad, _Mapping]] = ..., hit_path: _Optional[_Union[HitPathLoad, _Mapping]] = ..., relay: _Optional[_Union[RelayLoad, _Mapping]] = ..., model_fingerprint: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., experts: _Optional[_Union[ExpertLoad, _Mapping]] = ..., cancelled_total: _Optional[_Mapping[str, int]] = ...) -> None: ...

class RelayLoad(_message.Message):
    __slots__ = ("host_id", "queued_bytes", "bytes_per_s", "relayed_blocks_total", "store_id")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RELAYED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    queued_bytes: int
    bytes_per_s: float
    relayed_blocks_total: int
    store_id: str
    def __init__(self, host_id: _Optional[str] = ..., queued_bytes: _Optional[int] = ..., bytes_per_s: _Optional[float] = ..., relayed_blocks_total: _Optional[int] = ..., store_id: _Optional[str] = ...) -> None: ...

class ExpertLoad(_message.Message):
    __slots__ = ("rows_total", "hottest", "imbalance", "moved_slots_total")
    class RowsTotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    class HottestEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class ImbalanceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    class MovedSlotsTotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ROWS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HOTTEST_FIELD_NUMBER: _ClassVar[int]
    IMBALANCE_FIELD_NUMBER: _ClassVar[int]
    MOVED_SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    rows_total: _containers.ScalarMap[int, int]
    hottest: _containers.ScalarMap[int, float]
    imbalance: _containers.ScalarMap[int, float]
    moved_slots_total: _containers.ScalarMap[int, int]
    def __init__(self, rows_total: _Optional[_Mapping[int, int]] = ..., hottest: _Optional[_Mapping[int, float]] = ..., imbalance: _Optional[_Mapping[int, float]] = ..., moved_slots_total: _Optional[_Mapping[int, int]] = ...) -> None: ...

class PrefillLoad(_message.Message):
    __slots__ = ("queued_tokens", "tokens_per_s", "num_replayed_tokens", "capacity_tokens_per_s")
    QUEUED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLAYED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    queued_tokens: int
    tokens_per_s: float
    num_replayed_tokens: int
    capacity_tokens_per_s: float
    def __init__(self, queued_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., num_replayed_tokens: _Optional[int] = ..., capacity_tokens_per_s: _Optional[float] = ...) -> None: ...

class HitPathLoad(_message.Message):
    __slots__ = ("prompts_total", "hits_total", "hit_blocks_total", "hit_wait_s_total", "fetched_blocks_total", "fetched_bytes_total", "fetch_s_total", "host_blocks_total", "left_out_blocks_total", "late_blocks_total", "swapped_blocks_total", "swap_s_total", "relayed_blocks_total", "corrupt_blocks_total", "missing_blocks_total")
    PROMPTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIT_WAIT_S_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_TOTAL_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LATE_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_S_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RELAYED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSING_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    prompts_total: int
    hits_total: int
    hit_blocks_total: int
    hit_wait_s_total: float
    fetched_blocks_total: int
    fetched_bytes_total: int
    fetch_s_total: float
    host_blocks_total: int
    left_out_blocks_total: int
    late_blocks_total: int
    swapped_blocks_total: int
    swap_s_total: float
    relayed_blocks_total: int
    corrupt_blocks_total: int
    missing_blocks_total: int
    def __init__(self, prompts_total: _Optional[int] = ..., hits_total: _Optional[int] = ..., hit_blocks_total: _Optional[int] = ..., hit_wait_s_total: _Optional[float] = ..., fetched_blocks_total: _Optional[int] = ..., fetched_bytes_total: _Optional[int] = ..., fetch_s_total: _Optional[float] = ..., host_blocks_total: _Optional[int] = ..., left_out_blocks_total: _Optional[int] = ..., late_blocks_total: _Optional[int] = ..., swapped_blocks_total: _Optional[int] = ..., swap_s_total: _Optional[float] = ..., relayed_blocks_total: _Optional[int] = ..., corrupt_blocks_total: _Optional[int] = ..., missing_blocks_total: _Optional[int] = ...) -> None: ...

class DecodeLoad(_message.Message):
    __slots__ = ("num_running", "max_running", "kv_tokens", "num_reserved_pages", "step_s", "guess_rounds_total", "guessed_tokens_total", "taken_guesses_total", "step_times", "num_paused", "pauses_total", "moved_generations_total")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVED_PAGES_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    GUESS_ROUNDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GUESSED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TAKEN_GUESSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_FIELD_NUMBER: _ClassVar[int]
    NUM_PAUSED_FIELD_NUMBER: _ClassVar[int]
    PAUSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MOVED_GENERATIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    max_running: int
    kv_tokens: int
    num_reserved_pages: int
    step_s: float
    guess_rounds_total: int
    guessed_tokens_total: int
    taken_guesses_total: int
    step_times: DecodeStepTimes
    num_paused: int
    pauses_total: int
    moved_generations_total: int
    def __init__(self, num_running: _Optional[int] = ..., max_running: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., num_reserved_pages: _Optional[int] = ..., step_s: _Optional[float] = ..., guess_rounds_total: _Optional[int] = ..., guessed_tokens_total: _Optional[int] = ..., taken_guesses_total: _Optional[int] = ..., step_times: _Optional[_Union[DecodeStepTimes, _Mapping]] = ..., num_paused: _Optional[int] = ..., pauses_total: _Optional[int] = ..., moved_generations_total: _Optional[int] = ...) -> None: ...

class DecodeStepTimes(_message.Message):
    __slots__ = ("base_s", "per_request_s", "per_kv_token_s")
    BASE_S_FIELD_NUMBER: _ClassVar[int]
    PER_REQUEST_S_FIELD_NUMBER: _ClassVar[int]
    PER_KV_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    base_s: float
    per_request_s: float
    per_kv_token_s: float
    def __init__(self, base_s: _Optional[float] = ..., per_request_s: _Optional[float] = ..., per_kv_token_s: _Optional[float] = ...) -> None: ...

class RouterLoad(_message.Message):
    __slots__ = ("submitted_requests_total", "missed_prompt_tokens_total", "queued_jobs", "waiting_s", "num_waiting", "num_prefill", "waiting_by_tenant", "waiting_by_bucket", "matches_total", "match_s_total")
    class WaitingByTenantEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WaitingByBucketEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SUBMITTED_REQUESTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSED_PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUEUED_JOBS_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_TENANT_FIELD_NUMBER: _ClassVar[int]
    WAITING_BY_BUCKET_FIELD_NUMBER: _ClassVar[int]
    MATCHES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MATCH_S_TOTAL_FIELD_NUMBER: _ClassVar[int]
    submitted_requests_total: int
    missed_prompt_tokens_total: int
    queued_jobs: int
    waiting_s: float
    num_waiting: int
    num_prefill: int
    waiting_by_tenant: _containers.ScalarMap[str, int]
    waiting_by_bucket: _containers.ScalarMap[str, int]
    matches_total: int
    match_s_total: float
    def __init__(self, submitted_requests_total: _Optional[int] = ..., missed_prompt_tokens_total: _Optional[int] = ..., queued_jobs: _Optional[int] = ..., waiting_s: _Optional[float] = ..., num_waiting: _Optional[int] = ..., num_prefill: _Optional[int] = ..., waiting_by_tenant: _Optional[_Mapping[str, int]] = ..., waiting_by_bucket: _Optional[_Mapping[str, int]] = ..., matches_total: _Optional[int] = ..., match_s_total: _Optional[float] = ...) -> None: ...

class VisionLoad(_message.Message):
    __slots__ = ("queued_patches", "step_patches", "patches_per_s", "asked_patches_total")
    QUEUED_PATCHES_FIELD_NUMBER: _ClassVar[int]
    STEP_PATCHES_FIELD_NUMBER: _ClassVar[int]
    PATCHES_PER_S_FIELD_NUMBER: _ClassVar[int]
    ASKED_PATCHES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    queued_patches: int
    step_patches: int
    patches_per_s: float
    asked_patches_total: int
    def __init__(self, queued_patches: _Optional[int] = ..., step_patches: _Optional[int] = ..., patches_per_s: _Optional[float] = ..., asked_patches_total: _Optional[int] = ...) -> None: ...

class RecipeLoad(_message.Message):
    __slots__ = ("encoded_chars_total", "cached_chars_total", "token_cache_bytes", "restarted_generations_total", "tokens_total", "cpu_ms_total")
    ENCODED_CHARS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_CHARS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_GENERATIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    encoded_chars_total: int
    cached_chars_total: int
    token_cache_bytes: int
    restarted_generations_total: int
    tokens_total: int
    cpu_ms_total: int
    def __init__(self, encoded_chars_total: _Optional[int] = ..., cached_chars_total: _Optional[int] = ..., token_cache_bytes: _Optional[int] = ..., restarted_generations_total: _Optional[int] = ..., tokens_total: _Optional[int] = ..., cpu_ms_total: _Optional[int] = ...) -> None: ...

class KvmetaLoad(_message.Message):
    __slots__ = ("num_blocks", "index_bytes", "loaded", "resyncs_total", "matched_blocks_total", "asked_blocks_total", "misses_total", "quota_evicted_total", "pending_blocks")
    class MissesTotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INDEX_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    RESYNCS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MATCHED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ASKED_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MISSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    QUOTA_EVICTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PENDING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    index_bytes: int
    loaded: bool
    resyncs_total: int
    matched_blocks_total: int
    asked_blocks_total: int
    misses_total: _containers.ScalarMap[str, int]
    quota_evicted_total: int
    pending_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ..., index_bytes: _Optional[int] = ..., loaded: _Optional[bool] = ..., resyncs_total: _Optional[int] = ..., matched_blocks_total: _Optional[int] = ..., asked_blocks_total: _Optional[int] = ..., misses_total: _Optional[_Mapping[str, int]] = ..., quota_evicted_total: _Optional[int] = ..., pending_blocks: _Optional[int] = ...) -> None: ...
