from rorqual_proto.v1 import error_pb2 as _error_pb2
from rorqual_proto.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VisionPrepareRequest(_message.Message):
    __slots__ = ("request_id", "model", "url", "image", "detail", "param")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    url: str
    image: _tensor_pb2.Payload
    detail: str
    param: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., url: _Optional[str] = ..., image: _Optional[_Union[_tensor_pb2.Payload, _Mapping]] = ..., detail: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class VisionPrepareReply(_message.Message):
    __slots__ = ("prepared", "error")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    prepared: VisionPrepared
    error: _error_pb2.ErrorInfo
    def __init__(self, prepared: _Optional[_Union[VisionPrepared, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class VisionPrepared(_message.Message):
    __slots__ = ("image_digest", "num_rows", "num_columns", "num_tokens", "num_patches", "pixels")
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    NUM_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PATCHES_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    image_digest: bytes
    num_rows: int
    num_columns: int
    num_tokens: int
    num_patches: int
    pixels: _tensor_pb2.TensorTicket
    def __init__(self, image_digest: _Optional[bytes] = ..., num_rows: _Optional[int] = ..., num_columns: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_patches: _Optional[int] = ..., pixels: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ...) -> None: ...

class VisionEncodeRequest(_message.Message):
    __slots__ = ("request_id", "model", "image", "image_digest", "pixels")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    image: _tensor_pb2.Payload
    image_digest: bytes
    pixels: _tensor_pb2.TensorTicket
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., image: _Optional[_Union[_tensor_pb2.Payload, _Mapping]] = ..., image_digest: _Optional[bytes] = ..., pixels: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ...) -> None: ...

class VisionEncodeReply(_message.Message):
    __slots__ = ("encoded", "error")
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    encoded: VisionEncoded
    error: _error_pb2.ErrorInfo
    def __init__(self, encoded: _Optional[_Union[VisionEncoded, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.ErrorInfo, _Mapping]] = ...) -> None: ...

class VisionEncoded(_message.Message):
    __slots__ = ("embeddings", "num_tokens", "image_digest")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    embeddings: _tensor_pb2.TensorTicket
    num_tokens: int
    image_digest: bytes
    def __init__(self, embeddings: _Optional[_Union[_tensor_pb2.TensorTicket, _Mapping]] = ..., num_tokens: _Optional[int] = ..., image_digest: _Optional[bytes] = ...) -> None: ...
