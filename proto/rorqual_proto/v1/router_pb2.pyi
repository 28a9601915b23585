from rorqual_proto.v1 import error_pb2 as _error_pb2
from rorqual_proto.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("generations",)
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    generations: _containers.RepeatedCompositeFieldContainer[_generation_pb2.Generation]
    def __init__(self, generations: _Optional[_Iterable[_Union[_generation_pb2.Generation, _Mapping]]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("submitted", "error")
    SUBMITTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    submitted: Submitted
    error: _error_pb2.ErrorInfo
    def __init__(self, submitted: _Optional[_Union[Submitted, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Submitted(_message.Message):
    __slots__ = ("bucket", "num_cached_tokens")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    bucket: str
    num_cached_tokens: int
    def __init__(self, bucket: _Optional[str] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("request_id", "choice_index", "num_context_tokens", "max_new_tokens", "excluded_ids")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_IDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    num_context_tokens: int
    max_new_tokens: int
    excluded_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., num_context_tokens: _Optional[int] = ..., max_new_tokens: _Optional[int] = ..., excluded_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PlaceReply(_message.Message):
    __slots__ = ("placement", "error")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    placement: Placement
    error: _error_pb2.ErrorInfo
    def __init__(self, placement: _Optional[_Union[Placement, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("decode_id", "reason")
    DECODE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    decode_id: str
    reason: str
    def __init__(self, decode_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "reason", "choice_index")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    reason: str
    choice_index: int
    def __init__(self, request_id: _Optional[str] = ..., reason: _Optional[str] = ..., choice_index: _Optional[int] = ...) -> None: ...
