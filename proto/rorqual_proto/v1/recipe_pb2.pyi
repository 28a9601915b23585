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

class Protocol(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROTOCOL_UNSPECIFIED: _ClassVar[Protocol]
    PROTOCOL_CHAT_COMPLETIONS: _ClassVar[Protocol]
    PROTOCOL_RESPONSES: _ClassVar[Protocol]
    PROTOCOL_MESSAGES: _ClassVar[Protocol]
    PROTOCOL_COMPLETIONS: _ClassVar[Protocol]
    PROTOCOL_TOKENIZE: _ClassVar[Protocol]
    PROTOCOL_DETOKENIZE: _ClassVar[Protocol]
    PROTOCOL_COUNT_TOKENS: _ClassVar[Protocol]
    PROTOCOL_RESPONSE_RETRIEVE: _ClassVar[Protocol]
    PROTOCOL_RESPONSE_DELETE: _ClassVar[Protocol]
    PROTOCOL_RESPONSE_INPUT_ITEMS: _ClassVar[Protocol]
PROTOCOL_UNSPECIFIED: Protocol
PROTOCOL_CHAT_COMPLETIONS: Protocol
PROTOCOL_RESPONSES: Protocol
PROTOCOL_MESSAGES: Protocol
PROTOCOL_COMPLETIONS: Protocol
PROTOCOL_TOKENIZE: Protocol
PROTOCOL_DETOKENIZE: Protocol
PROTOCOL_COUNT_TOKENS: Protocol
PROTOCOL_RESPONSE_RETRIEVE: Protocol
PROTOCOL_RESPONSE_DELETE: Protocol
PROTOCOL_RESPONSE_INPUT_ITEMS: Protocol

class EncodeRequest(_message.Message):
    __slots__ = ("request_id", "protocol", "body", "tenant", "gateway_id", "deadline_unix_s", "resource", "received_unix_s", "resume")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    GATEWAY_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    protocol: Protocol
    body: _tensor_pb2.Payload
    tenant: str
    gateway_id: str
    deadline_unix_s: float
    resource: str
    received_unix_s: float
    resume: Resume
    def __init__(self, request_id: _Optional[str] = ..., protocol: _Optional[_Union[Protocol, str]] = ..., body: _Optional[_Union[_tensor_pb2.Payload, _Mapping]] = ..., tenant: _Optional[str] = ..., gateway_id: _Optional[str] = ..., deadline_unix_s: _Optional[float] = ..., resource: _Optional[str] = ..., received_unix_s: _Optional[float] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("lost_recipe_id", "take_over", "next_seq", "num_tokens", "finish_reasons", "decode_ids")
    LOST_RECIPE_ID_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    DECODE_IDS_FIELD_NUMBER: _ClassVar[int]
    lost_recipe_id: str
    take_over: int
    next_seq: int
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    finish_reasons: _containers.RepeatedScalarFieldContainer[str]
    decode_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lost_recipe_id: _Optional[str] = ..., take_over: _Optional[int] = ..., next_seq: _Optional[int] = ..., num_tokens: _Optional[_Iterable[int]] = ..., finish_reasons: _Optional[_Iterable[str]] = ..., decode_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class EncodeReply(_message.Message):
    __slots__ = ("encoded", "error", "answer")
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    encoded: Encoded
    error: ProtocolError
    answer: DirectAnswer
    def __init__(self, encoded: _Optional[_Union[Encoded, _Mapping]] = ..., error: _Optional[_Union[ProtocolError, _Mapping]] = ..., answer: _Optional[_Union[DirectAnswer, _Mapping]] = ...) -> None: ...

class DirectAnswer(_message.Message):
    __slots__ = ("http_status", "body")
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    http_status: int
    body: _tensor_pb2.Payload
    def __init__(self, http_status: _Optional[int] = ..., body: _Optional[_Union[_tensor_pb2.Payload, _Mapping]] = ...) -> None: ...

class Encoded(_message.Message):
    __slots__ = ("generations", "stream", "warnings")
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Generation]
    stream: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generations: _Optional[_Iterable[_Union[_generation_pb2.Generation, _Mapping]]] = ..., stream: _Optional[bool] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ProtocolError(_message.Message):
    __slots__ = ("http_status", "body_json", "retry_after_s", "info", "sse_frames")
    HTTP_STATUS_FIELD_NUMBER: _ClassVar[int]
    BODY_JSON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    SSE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    http_status: int
    body_json: bytes
    retry_after_s: int
    info: _error_pb2.ErrorInfo
    sse_frames: bytes
    def __init__(self, http_status: _Optional[int] = ..., body_json: _Optional[bytes] = ..., retry_after_s: _Optional[int] = ..., info: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ..., sse_frames: _Optional[bytes] = ...) -> None: ...

class RenderErrorRequest(_message.Message):
    __slots__ = ("request_id", "protocol", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    protocol: Protocol
    error: _error_pb2.ErrorInfo
    def __init__(self, request_id: _Optional[str] = ..., protocol: _Optional[_Union[Protocol, str]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamEvents]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamEvents, _Mapping]]] = ...) -> None: ...

class StreamEvents(_message.Message):
    __slots__ = ("request_id", "seq", "data", "done", "error", "usage", "finish_reasons", "num_tokens", "decode_ids", "take_over")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DECODE_IDS_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    seq: int
    data: _containers.RepeatedScalarFieldContainer[bytes]
    done: bool
    error: ProtocolError
    usage: Usage
    finish_reasons: _containers.RepeatedScalarFieldContainer[str]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    decode_ids: _containers.RepeatedScalarFieldContainer[str]
    take_over: int
    def __init__(self, request_id: _Optional[str] = ..., seq: _Optional[int] = ..., data: _Optional[_Iterable[bytes]] = ..., done: _Optional[bool] = ..., error: _Optional[_Union[ProtocolError, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., finish_reasons: _Optional[_Iterable[str]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., decode_ids: _Optional[_Iterable[str]] = ..., take_over: _Optional[int] = ...) -> None: ...

class ResendEventsRequest(_message.Message):
    __slots__ = ("request_id", "from_seq", "listener_id", "leaves")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQ_FIELD_NUMBER: _ClassVar[int]
    LISTENER_ID_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    from_seq: int
    listener_id: str
    leaves: bool
    def __init__(self, request_id: _Optional[str] = ..., from_seq: _Optional[int] = ..., listener_id: _Optional[str] = ..., leaves: _Optional[bool] = ...) -> None: ...

class ResendEventsReply(_message.Message):
    __slots__ = ("events", "error", "listener_id")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LISTENER_ID_FIELD_NUMBER: _ClassVar[int]
    events: EventBatch
    error: _error_pb2.ErrorInfo
    listener_id: str
    def __init__(self, events: _Optional[_Union[EventBatch, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ..., listener_id: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cache_miss_reason")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cache_miss_reason: str
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cache_miss_reason: _Optional[str] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("id", "max_context_tokens", "has_vision", "created_unix_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_VISION_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    max_context_tokens: int
    has_vision: bool
    created_unix_s: int
    def __init__(self, id: _Optional[str] = ..., max_context_tokens: _Optional[int] = ..., has_vision: _Optional[bool] = ..., created_unix_s: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...
