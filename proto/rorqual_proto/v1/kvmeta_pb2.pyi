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

class Provenance(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVENANCE_EXACT: _ClassVar[Provenance]
    PROVENANCE_REPLAYED: _ClassVar[Provenance]
PROVENANCE_EXACT: Provenance
PROVENANCE_REPLAYED: Provenance

class MatchRequest(_message.Message):
    __slots__ = ("request_id", "model_fingerprint", "packed_block_keys", "exact_only", "content_key", "lease_id")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACKED_BLOCK_KEYS_FIELD_NUMBER: _ClassVar[int]
    EXACT_ONLY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model_fingerprint: str
    packed_block_keys: bytes
    exact_only: bool
    content_key: bytes
    lease_id: str
    def __init__(self, request_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., packed_block_keys: _Optional[bytes] = ..., exact_only: _Optional[bool] = ..., content_key: _Optional[bytes] = ..., lease_id: _Optional[str] = ...) -> None: ...

class MatchReply(_message.Message):
    __slots__ = ("match", "error")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    match: Match
    error: _error_pb2.ErrorInfo
    def __init__(self, match: _Optional[_Union[Match, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Match(_message.Message):
    __slots__ = ("num_matched_blocks", "lease_id", "lease_expires_unix_s", "miss_reason", "num_exact_blocks", "windows")
    NUM_MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_EXACT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    num_matched_blocks: int
    lease_id: str
    lease_expires_unix_s: float
    miss_reason: str
    num_exact_blocks: int
    windows: _containers.RepeatedCompositeFieldContainer[WindowPlace]
    def __init__(self, num_matched_blocks: _Optional[int] = ..., lease_id: _Optional[str] = ..., lease_expires_unix_s: _Optional[float] = ..., miss_reason: _Optional[str] = ..., num_exact_blocks: _Optional[int] = ..., windows: _Optional[_Iterable[_Union[WindowPlace, _Mapping]]] = ...) -> None: ...

class WindowPlace(_message.Message):
    __slots__ = ("num_blocks", "holder_id", "expires_unix_s", "replayed")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    holder_id: str
    expires_unix_s: float
    replayed: bool
    def __init__(self, num_blocks: _Optional[int] = ..., holder_id: _Optional[str] = ..., expires_unix_s: _Optional[float] = ..., replayed: _Optional[bool] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("lease_id",)
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    def __init__(self, lease_id: _Optional[str] = ...) -> None: ...

class RegisterBlocksRequest(_message.Message):
    __slots__ = ("model_fingerprint", "blocks")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRecord]
    def __init__(self, model_fingerprint: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[BlockRecord, _Mapping]]] = ...) -> None: ...

class BlockRecord(_message.Message):
    __slots__ = ("key", "size_bytes", "traffic_class", "store", "provenance", "tenant", "position", "lifetime_s", "content_key")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_CLASS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_S_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    size_bytes: int
    traffic_class: _generation_pb2.TrafficClass
    store: str
    provenance: Provenance
    tenant: str
    position: int
    lifetime_s: float
    content_key: bytes
    def __init__(self, key: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., traffic_class: _Optional[_Union[_generation_pb2.TrafficClass, str]] = ..., store: _Optional[str] = ..., provenance: _Optional[_Union[Provenance, str]] = ..., tenant: _Optional[str] = ..., position: _Optional[int] = ..., lifetime_s: _Optional[float] = ..., content_key: _Optional[bytes] = ...) -> None: ...

class RegisterBlocksReply(_message.Message):
    __slots__ = ("num_registered", "error")
    NUM_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    num_registered: int
    error: _error_pb2.ErrorInfo
    def __init__(self, num_registered: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class ForgetBlocksRequest(_message.Message):
    __slots__ = ("model_fingerprint", "keys", "reason")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    reason: str
    def __init__(self, model_fingerprint: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., reason: _Optional[str] = ...) -> None: ...

class ClearBlocksRequest(_message.Message):
    __slots__ = ("model_fingerprint", "tenant", "has_tenant")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HAS_TENANT_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    tenant: str
    has_tenant: bool
    def __init__(self, model_fingerprint: _Optional[str] = ..., tenant: _Optional[str] = ..., has_tenant: _Optional[bool] = ...) -> None: ...

class ClearBlocksReply(_message.Message):
    __slots__ = ("num_cleared", "error")
    NUM_CLEARED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    num_cleared: int
    error: _error_pb2.ErrorInfo
    def __init__(self, num_cleared: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class DropBlocksRequest(_message.Message):
    __slots__ = ("model_fingerprint", "packed_keys")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    packed_keys: bytes
    def __init__(self, model_fingerprint: _Optional[str] = ..., packed_keys: _Optional[bytes] = ...) -> None: ...

class HoldBlocksRequest(_message.Message):
    __slots__ = ("model_fingerprint", "packed_keys", "until_unix_s")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PACKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    packed_keys: bytes
    until_unix_s: float
    def __init__(self, model_fingerprint: _Optional[str] = ..., packed_keys: _Optional[bytes] = ..., until_unix_s: _Optional[float] = ...) -> None: ...

class BlockEvents(_message.Message):
    __slots__ = ("publisher_id", "incarnation", "seq", "records", "contents", "clear")
    PUBLISHER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    CLEAR_FIELD_NUMBER: _ClassVar[int]
    publisher_id: str
    incarnation: int
    seq: int
    records: bytes
    contents: bytes
    clear: ClearBlocksRequest
    def __init__(self, publisher_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., records: _Optional[bytes] = ..., contents: _Optional[bytes] = ..., clear: _Optional[_Union[ClearBlocksRequest, _Mapping]] = ...) -> None: ...

class WindowNotice(_message.Message):
    __slots__ = ("model_fingerprint", "holder_id", "key", "expires_unix_s", "replayed")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    holder_id: str
    key: bytes
    expires_unix_s: float
    replayed: bool
    def __init__(self, model_fingerprint: _Optional[str] = ..., holder_id: _Optional[str] = ..., key: _Optional[bytes] = ..., expires_unix_s: _Optional[float] = ..., replayed: _Optional[bool] = ...) -> None: ...

class WindowRequest(_message.Message):
    __slots__ = ("model_fingerprint", "key")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    key: bytes
    def __init__(self, model_fingerprint: _Optional[str] = ..., key: _Optional[bytes] = ...) -> None: ...

class WindowReply(_message.Message):
    __slots__ = ("window", "error", "replayed")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    window: _tensor_pb2.TensorTicket
    error: _error_pb2.ErrorInfo
    replayed: bool
    def __init__(self, window: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ..., replayed: _Optional[bool] = ...) -> None: ...
