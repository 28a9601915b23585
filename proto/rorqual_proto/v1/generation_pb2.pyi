from rorqual_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConstraintKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONSTRAINT_KIND_UNSPECIFIED: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_JSON_SCHEMA: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_JSON_OBJECT: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_REGEX: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_EBNF: _ClassVar[ConstraintKind]
    CONSTRAINT_KIND_STRUCTURAL_TAG: _ClassVar[ConstraintKind]

class TrafficClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAFFIC_CLASS_UNSPECIFIED: _ClassVar[TrafficClass]
    TRAFFIC_CLASS_CHAT: _ClassVar[TrafficClass]
    TRAFFIC_CLASS_AGENT: _ClassVar[TrafficClass]
CONSTRAINT_KIND_UNSPECIFIED: ConstraintKind
CONSTRAINT_KIND_JSON_SCHEMA: ConstraintKind
CONSTRAINT_KIND_JSON_OBJECT: ConstraintKind
CONSTRAINT_KIND_REGEX: ConstraintKind
CONSTRAINT_KIND_EBNF: ConstraintKind
CONSTRAINT_KIND_STRUCTURAL_TAG: ConstraintKind
TRAFFIC_CLASS_UNSPECIFIED: TrafficClass
TRAFFIC_CLASS_CHAT: TrafficClass
TRAFFIC_CLASS_AGENT: TrafficClass

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "max_new_tokens", "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "min_new_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    max_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    min_new_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., min_new_tokens: _Optional[int] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("kind", "source", "param")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    kind: ConstraintKind
    source: str
    param: str
    def __init__(self, kind: _Optional[_Union[ConstraintKind, str]] = ..., source: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class ReplyRoute(_message.Message):
    __slots__ = ("recipe_id", "gateway_id")
    RECIPE_ID_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    recipe_id: str
    gateway_id: str
    def __init__(self, recipe_id: _Optional[str] = ..., gateway_id: _Optional[str] = ...) -> None: ...

class PromptImage(_message.Message):
    __slots__ = ("first_token", "num_tokens", "digest", "num_patches", "pixels", "param")
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_PATCHES_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    first_token: int
    num_tokens: int
    digest: bytes
    num_patches: int
    pixels: _tensor_pb2.TensorTicket
    param: str
    def __init__(self, first_token: _Optional[int] = ..., num_tokens: _Optional[int] = ..., digest: _Optional[bytes] = ..., num_patches: _Optional[int] = ..., pixels: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., param: _Optional[str] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("request_id", "choice_index", "model", "prompt", "num_prompt_tokens", "sampling", "constraint", "traffic_class", "cache_namespace", "reply", "deadline_unix_s", "images", "num_choices", "tenant", "adapter", "priority", "cache_ttl_s", "num_output_tokens", "run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    CACHE_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_TTL_S_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    model: str
    prompt: _tensor_pb2.Payload
    num_prompt_tokens: int
    sampling: SamplingParams
    constraint: Constraint
    traffic_class: TrafficClass
    cache_namespace: str
    reply: ReplyRoute
    deadline_unix_s: float
    images: _containers.RepeatedCompositeFieldContainer[PromptImage]
    num_choices: int
    tenant: str
    adapter: str
    priority: int
    cache_ttl_s: int
    num_output_tokens: int
    run: int
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., model: _Optional[str] = ..., prompt: _Optional[_Union[_tensor_pb2.Payload, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., traffic_class: _Optional[_Union[TrafficClass, str]] = ..., cache_namespace: _Optional[str] = ..., reply: _Optional[_Union[ReplyRoute, _Mapping]] = ..., deadline_unix_s: _Optional[float] = ..., images: _Optional[_Iterable[_Union[PromptImage, _Mapping]]] = ..., num_choices: _Optional[int] = ..., tenant: _Optional[str] = ..., adapter: _Optional[str] = ..., priority: _Optional[int] = ..., cache_ttl_s: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., run: _Optional[int] = ...) -> None: ...
