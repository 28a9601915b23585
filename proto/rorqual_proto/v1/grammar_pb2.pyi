from rorqual_proto.v1 import error_pb2 as _error_pb2
from rorqual_proto.v1 import generation_pb2 as _generation_pb2
from rorqual_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CompileRequest(_message.Message):
    __slots__ = ("request_id", "model", "constraint")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    constraint: _generation_pb2.Constraint
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., constraint: _Optional[_Union[_generation_pb2.Constraint, _Mapping]] = ...) -> None: ...

class CompileReply(_message.Message):
    __slots__ = ("compiled", "error")
    COMPILED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    compiled: Compiled
    error: _error_pb2.ErrorInfo
    def __init__(self, compiled: _Optional[_Union[Compiled, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class Compiled(_message.Message):
    __slots__ = ("grammar", "cache_hit", "compile_s")
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CACHE_HIT_FIELD_NUMBER: _ClassVar[int]
    COMPILE_S_FIELD_NUMBER: _ClassVar[int]
    grammar: _tensor_pb2.TensorTicket
    cache_hit: bool
    compile_s: float
    def __init__(self, grammar: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., cache_hit: _Optional[bool] = ..., compile_s: _Optional[float] = ...) -> None: ...
