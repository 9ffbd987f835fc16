from sax.proto import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CustomRequest(_message.Message):
    __slots__ = ("model_key", "request", "extra_inputs", "method_name")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAME_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    request: bytes
    extra_inputs: _common_pb2.ExtraInputs
    method_name: str
    def __init__(self, model_key: _Optional[str] = ..., request: _Optional[bytes] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ..., method_name: _Optional[str] = ...) -> None: ...

class CustomResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: bytes
    def __init__(self, response: _Optional[bytes] = ...) -> None: ...
