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
    __slots__ = ("generation", "num_matched_blocks", "kv_lease_id", "compiled_grammar", "submitted_unix_s", "image_embeddings", "num_exact_blocks", "exact_only", "windows")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NUM_MATCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    COMPILED_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    IMAGE_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXACT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXACT_ONLY_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    generation: _generation_pb2.Generation
    num_matched_blocks: int
    kv_lease_id: str
    compiled_grammar: _tensor_pb2.TensorTicket
    submitted_unix_s: float
    image_embeddings: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorTicket]
    num_exact_blocks: int
    exact_only: bool
    windows: _containers.RepeatedCompositeFieldContainer[_kvmeta_pb2.WindowPlace]
    def __init__(self, generation: _Optional[_Union[_generation_pb2.Generation, _Mapping]] = ..., num_matched_blocks: _Optional[int] = ..., kv_lease_id: _Optional[str] = ..., compiled_grammar: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., submitted_unix_s: _Optional[float] = ..., image_embeddings: _Optional[_Iterable[_Union[_tensor_pb2.TensorTicket, _Mapping]]] = ..., num_exact_blocks: _Optional[int] = ..., exact_only: _Optional[bool] = ..., windows: _Optional[_Iterable[_Union[_kvmeta_pb2.WindowPlace, _Mapping]]] = ...) -> None: ...
