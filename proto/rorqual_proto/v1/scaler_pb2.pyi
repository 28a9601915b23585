from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScaleDecision(_message.Message):
    __slots__ = ("incarnation", "seq", "decided_unix_s", "targets", "driver")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DECIDED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    seq: int
    decided_unix_s: float
    targets: _containers.RepeatedCompositeFieldContainer[ServiceTarget]
    driver: str
    def __init__(self, incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., decided_unix_s: _Optional[float] = ..., targets: _Optional[_Iterable[_Union[ServiceTarget, _Mapping]]] = ..., driver: _Optional[str] = ...) -> None: ...

class ServiceTarget(_message.Message):
    __slots__ = ("service", "num_running", "num_desired", "reason", "num_pending", "num_change")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_DESIRED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PENDING_FIELD_NUMBER: _ClassVar[int]
    NUM_CHANGE_FIELD_NUMBER: _ClassVar[int]
    service: str
    num_running: int
    num_desired: int
    reason: str
    num_pending: int
    num_change: int
    def __init__(self, service: _Optional[str] = ..., num_running: _Optional[int] = ..., num_desired: _Optional[int] = ..., reason: _Optional[str] = ..., num_pending: _Optional[int] = ..., num_change: _Optional[int] = ...) -> None: ...

class GetDecisionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("drain_s",)
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    drain_s: float
    def __init__(self, drain_s: _Optional[float] = ...) -> None: ...
