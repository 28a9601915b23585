from rorqual_proto.v1 import error_pb2 as _error_pb2
from rorqual_proto.v1 import generation_pb2 as _generation_pb2
from rorqual_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_ERROR: FinishReason

class HandoverRequest(_message.Message):
    __slots__ = ("generation", "num_stored_blocks", "num_cached_tokens", "kv_pages", "first_logits", "compiled_grammar", "model_fingerprint", "submitted_unix_s", "last_block_key", "window", "replayed", "cache_miss_reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_PAGES_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOGITS_FIELD_NUMBER: _ClassVar[int]
    COMPILED_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_KEY_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    generation: _generation_pb2.Generation
    num_stored_blocks: int
    num_cached_tokens: int
    kv_pages: _tensor_pb2.TensorTicket
    first_logits: _tensor_pb2.TensorTicket
    compiled_grammar: _tensor_pb2.TensorTicket
    model_fingerprint: str
    submitted_unix_s: float
    last_block_key: bytes
    window: _tensor_pb2.TensorTicket
    replayed: bool
    cache_miss_reason: str
    def __init__(self, generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ..., num_stored_blocks: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., kv_pages: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., first_logits: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., compiled_grammar: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., model_fingerprint: _Optional[str] = ..., submitted_unix_s: _Optional[float] = ..., last_block_key: _Optional[bytes] = ..., window: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., replayed: _Optional[bool] = ..., cache_miss_reason: _Optional[str] = ...) -> None: ...

class HandoverReply(_message.Message):
    __slots__ = ("accepted", "error")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    accepted: HandoverAccepted
    error: _error_pb2.ErrorInfo
    def __init__(self, accepted: _Optional[_Union[HandoverAccepted, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class HandoverAccepted(_message.Message):
    __slots__ = ("duplicate",)
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    def __init__(self, duplicate: _Optional[bool] = ...) -> None: ...

class TokenBatch(_message.Message):
    __slots__ = ("decode_id", "incarnation", "deltas")
    DECODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DELTAS_FIELD_NUMBER: _ClassVar[int]
    decode_id: str
    incarnation: int
    deltas: _containers.RepeatedCompositeFieldContainer[TokenDelta]
    def __init__(self, decode_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., deltas: _Optional[_Iterable[_Union[TokenDelta, _Mapping]]] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("request_id", "choice_index", "seq", "token_ids", "logprobs", "finish_reason", "num_prompt_tokens", "num_cached_tokens", "error", "cache_miss_reason", "run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    seq: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    error: _error_pb2.ErrorInfo
    cache_miss_reason: str
    run: int
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., seq: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ..., cache_miss_reason: _Optional[str] = ..., run: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("token_id", "logprob", "top_ids", "top_logprobs")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class ResendRequest(_message.Message):
    __slots__ = ("request_id", "choice_index", "from_seq")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    from_seq: int
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., from_seq: _Optional[int] = ...) -> None: ...

class ResendReply(_message.Message):
    __slots__ = ("delta", "error")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    delta: TokenDelta
    error: _error_pb2.ErrorInfo
    def __init__(self, delta: _Optional[_Union[TokenDelta, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class DropRunsRequest(_message.Message):
    __slots__ = ("request_id", "choice_index", "before_run")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEFORE_RUN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    before_run: int
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., before_run: _Optional[int] = ...) -> None: ...

class RepeatTokensRequest(_message.Message):
    __slots__ = ("recipe_ids",)
    RECIPE_IDS_FIELD_NUMBER: _ClassVar[int]
    recipe_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, recipe_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class BlockReadRequest(_message.Message):
    __slots__ = ("model_fingerprint", "packed_keys")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    packed_keys: bytes
    def __init__(self, model_fingerprint: _Optional[str] = ..., packed_keys: _Optional[bytes] = ...) -> None: ...

class BlockReadReply(_message.Message):
    __slots__ = ("blocks", "error", "is_read")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_READ_FIELD_NUMBER: _ClassVar[int]
    blocks: _tensor_pb2.TensorTicket
    error: _error_pb2.ErrorInfo
    is_read: bytes
    def __init__(self, blocks: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ..., is_read: _Optional[bytes] = ...) -> None: ...
