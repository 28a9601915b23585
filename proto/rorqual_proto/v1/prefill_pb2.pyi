from rorqual_proto.v1 import error_pb2 as _error_pb2
from rorqual_proto.v1 import generation_pb2 as _generation_pb2
from rorqual_proto.v1 import kvmeta_pb2 as _kvmeta_pb2
from rorqual_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrefillJob(_message.Message):
    __slots__ = ("generation", "num_matched_blocks", "kv_lease_id", "compiled_grammar", "submitted_unix_s", "image_embeddings", "num_exact_blocks", "exact_only", "windows", "num_missed_tokens", "miss_reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPILED_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    IMAGE_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXACT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXACT_ONLY_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    generation: _generation_pb2.Generation
    num_matched_blocks: int
    kv_lease_id: str
    compiled_grammar: _tensor_pb2.TensorTicket
    submitted_unix_s: float
    image_embeddings: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorTicket]
    num_exact_blocks: int
    exact_only: bool
    windows: _containers.RepeatedCompositeFieldContainer[_kvmeta_pb2.WindowPlace]
    num_missed_tokens: int
    miss_reason: str
    def __init__(self, generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ..., num_matched_blocks: _Optional[int] = ..., kv_lease_id: _Optional[str] = ..., compiled_grammar: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., submitted_unix_s: _Optional[float] = ..., image_embeddings: _Optional[_Iterable[_Union[_tensor_pb2.TensorTicket, _Mapping]]] = ..., num_exact_blocks: _Optional[int] = ..., exact_only: _Optional[bool] = ..., windows: _Optional[_Iterable[_Union[_kvmeta_pb2.WindowPlace, _Mapping]]] = ..., num_missed_tokens: _Optional[int] = ..., miss_reason: _Optional[str] = ...) -> None: ...

class PrefillRoom(_message.Message):
    __slots__ = ("instance_id", "incarnation", "seq", "buckets", "open", "pending_s", "longest_s", "cost", "running_s", "untried")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PENDING_S_FIELD_NUMBER: _ClassVar[int]
    LONGEST_S_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    RUNNING_S_FIELD_NUMBER: _ClassVar[int]
    UNTRIED_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    incarnation: int
    seq: int
    buckets: _containers.RepeatedScalarFieldContainer[str]
    open: bool
    pending_s: float
    longest_s: float
    cost: StepCost
    running_s: float
    untried: _containers.RepeatedCompositeFieldContainer[UntriedJob]
    def __init__(self, instance_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., buckets: _Optional[_Iterable[str]] = ..., open: _Optional[bool] = ..., pending_s: _Optional[float] = ..., longest_s: _Optional[float] = ..., cost: _Optional[_Union[StepCost, _Mapping]] = ..., running_s: _Optional[float] = ..., untried: _Optional[_Iterable[_Union[UntriedJob, _Mapping]]] = ...) -> None: ...

class UntriedJob(_message.Message):
    __slots__ = ("request_id", "choice_index", "run", "stream_seq")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    STREAM_SEQ_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice_index: int
    run: int
    stream_seq: int
    def __init__(self, request_id: _Optional[str] = ..., choice_index: _Optional[int] = ..., run: _Optional[int] = ..., stream_seq: _Optional[int] = ...) -> None: ...

class StepCost(_message.Message):
    __slots__ = ("a0_s", "a1_s", "a2_s", "a3_s")
    A0_S_FIELD_NUMBER: _ClassVar[int]
    A1_S_FIELD_NUMBER: _ClassVar[int]
    A2_S_FIELD_NUMBER: _ClassVar[int]
    A3_S_FIELD_NUMBER: _ClassVar[int]
    a0_s: float
    a1_s: float
    a2_s: float
    a3_s: float
    def __init__(self, a0_s: _Optional[float] = ..., a1_s: _Optional[float] = ..., a2_s: _Optional[float] = ..., a3_s: _Optional[float] = ...) -> None: ...

class PrefillAssignment(_message.Message):
    __slots__ = ("subject", "lease_subject", "headers", "job", "take_by_unix_s", "num_begun")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LEASE_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    TAKE_BY_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    NUM_BEGUN_FIELD_NUMBER: _ClassVar[int]
    subject: str
    lease_subject: str
    headers: _containers.ScalarMap[str, str]
    job: bytes
    take_by_unix_s: float
    num_begun: int
    def __init__(self, subject: _Optional[str] = ..., lease_subject: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., job: _Optional[bytes] = ..., take_by_unix_s: _Optional[float] = ..., num_begun: _Optional[int] = ...) -> None: ...

class PrefillAssignmentReply(_message.Message):
    __slots__ = ("taken", "error")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    taken: PrefillRoom
    error: _error_pb2.ErrorInfo
    def __init__(self, taken: _Optional[_Union[PrefillRoom, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...
