from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorEndpoint(_message.Message):
    __slots__ = ("shm", "grpc")
    SHM_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    shm: ShmEndpoint
    grpc: GrpcEndpoint
    def __init__(self, shm: _Optional[_Union[ShmEndpoint, _Mapping]] = ..., grpc: _Optional[_Union[GrpcEndpoint, _Mapping]] = ...) -> None: ...

class ShmEndpoint(_message.Message):
    __slots__ = ("host_id", "segment", "offset_bytes", "header_offset_bytes")
    HOST_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADER_OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    host_id: str
    segment: str
    offset_bytes: int
    header_offset_bytes: int
    def __init__(self, host_id: _Optional[str] = ..., segment: _Optional[str] = ..., offset_bytes: _Optional[int] = ..., header_offset_bytes: _Optional[int] = ...) -> None: ...

class GrpcEndpoint(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class TensorTicket(_message.Message):
    __slots__ = ("owner_id", "incarnation", "slot", "generation", "size_bytes", "dtype", "shape", "xxh3_64", "expires_unix_s", "endpoints")
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    XXH3_64_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    owner_id: str
    incarnation: int
    slot: int
    generation: int
    size_bytes: int
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    xxh3_64: int
    expires_unix_s: float
    endpoints: _containers.RepeatedCompositeFieldContainer[TensorEndpoint]
    def __init__(self, owner_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., slot: _Optional[int] = ..., generation: _Optional[int] = ..., size_bytes: _Optional[int] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., xxh3_64: _Optional[int] = ..., expires_unix_s: _Optional[float] = ..., endpoints: _Optional[_Iterable[_Union[TensorEndpoint, _Mapping]]] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("inline", "ticket")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    inline: bytes
    ticket: TensorTicket
    def __init__(self, inline: _Optional[bytes] = ..., ticket: _Optional[_Union[TensorTicket, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: TensorTicket
    def __init__(self, ticket: _Optional[_Union[TensorTicket, _Mapping]] = ...) -> None: ...

class ReadChunk(_message.Message):
    __slots__ = ("data", "xxh3_64")
    DATA_FIELD_NUMBER: _ClassVar[int]
    XXH3_64_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    xxh3_64: int
    def __init__(self, data: _Optional[bytes] = ..., xxh3_64: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: TensorTicket
    def __init__(self, ticket: _Optional[_Union[TensorTicket, _Mapping]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: _Optional[bool] = ...) -> None: ...
