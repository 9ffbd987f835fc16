from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AsrRequest(_message.Message):
    __slots__ = ("model_key", "audio_bytes", "audio_format", "extra_inputs")
    class AudioFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[AsrRequest.AudioFormat]
        WAVEFORM_FILE: _ClassVar[AsrRequest.AudioFormat]
        DATA_UTTERANCE: _ClassVar[AsrRequest.AudioFormat]
    UNSPECIFIED: AsrRequest.AudioFormat
    WAVEFORM_FILE: AsrRequest.AudioFormat
    DATA_UTTERANCE: AsrRequest.AudioFormat
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    AUDIO_BYTES_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FORMAT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    audio_bytes: bytes
    audio_format: AsrRequest.AudioFormat
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., audio_bytes: _Optional[bytes] = ..., audio_format: _Optional[_Union[AsrRequest.AudioFormat, str]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class AsrHypothesis(_message.Message):
    __slots__ = ("text", "score")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class AsrResponse(_message.Message):
    __slots__ = ("hyps",)
    HYPS_FIELD_NUMBER: _ClassVar[int]
    hyps: _containers.RepeatedCompositeFieldContainer[AsrHypothesis]
    def __init__(self, hyps: _Optional[_Iterable[_Union[AsrHypothesis, _Mapping]]] = ...) -> None: ...
