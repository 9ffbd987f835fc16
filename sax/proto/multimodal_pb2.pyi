from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class IdList(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[_Iterable[int]] = ...) -> None: ...

class FloatEmbedding(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class DoubleEmbedding(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class AudioFloatSamples(_message.Message):
    __slots__ = ("sample",)
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    sample: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sample: _Optional[_Iterable[float]] = ...) -> None: ...

class MediaPath(_message.Message):
    __slots__ = ("media_path", "media_type")
    class MediaType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[MediaPath.MediaType]
        IMAGE: _ClassVar[MediaPath.MediaType]
        AUDIO: _ClassVar[MediaPath.MediaType]
        VIDEO: _ClassVar[MediaPath.MediaType]
    UNSPECIFIED: MediaPath.MediaType
    IMAGE: MediaPath.MediaType
    AUDIO: MediaPath.MediaType
    VIDEO: MediaPath.MediaType
    MEDIA_PATH_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    media_path: str
    media_type: MediaPath.MediaType
    def __init__(self, media_path: _Optional[str] = ..., media_type: _Optional[_Union[MediaPath.MediaType, str]] = ...) -> None: ...

class DataItem(_message.Message):
    __slots__ = ("text", "image_bytes", "image_tokens", "image_embedding", "audio_float_samples", "audio_tokens", "video", "media_path")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FLOAT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    MEDIA_PATH_FIELD_NUMBER: _ClassVar[int]
    text: str
    image_bytes: bytes
    image_tokens: IdList
    image_embedding: FloatEmbedding
    audio_float_samples: AudioFloatSamples
    audio_tokens: IdList
    video: bytes
    media_path: MediaPath
    def __init__(self, text: _Optional[str] = ..., image_bytes: _Optional[bytes] = ..., image_tokens: _Optional[_Union[IdList, _Mapping]] = ..., image_embedding: _Optional[_Union[FloatEmbedding, _Mapping]] = ..., audio_float_samples: _Optional[_Union[AudioFloatSamples, _Mapping]] = ..., audio_tokens: _Optional[_Union[IdList, _Mapping]] = ..., video: _Optional[bytes] = ..., media_path: _Optional[_Union[MediaPath, _Mapping]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("prefix_items", "suffix_items")
    PREFIX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_ITEMS_FIELD_NUMBER: _ClassVar[int]
    prefix_items: _containers.RepeatedCompositeFieldContainer[DataItem]
    suffix_items: _containers.RepeatedCompositeFieldContainer[DataItem]
    def __init__(self, prefix_items: _Optional[_Iterable[_Union[DataItem, _Mapping]]] = ..., suffix_items: _Optional[_Iterable[_Union[DataItem, _Mapping]]] = ...) -> None: ...

class ScoreResult(_message.Message):
    __slots__ = ("score",)
    SCORE_FIELD_NUMBER: _ClassVar[int]
    score: float
    def __init__(self, score: _Optional[float] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ScoreResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ScoreResult, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DataItem]
    def __init__(self, items: _Optional[_Iterable[_Union[DataItem, _Mapping]]] = ...) -> None: ...

class GenerateResult(_message.Message):
    __slots__ = ("items", "score")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DataItem]
    score: float
    def __init__(self, items: _Optional[_Iterable[_Union[DataItem, _Mapping]]] = ..., score: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[GenerateResult]
    def __init__(self, results: _Optional[_Iterable[_Union[GenerateResult, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DataItem]
    def __init__(self, items: _Optional[_Iterable[_Union[DataItem, _Mapping]]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embedding",)
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    embedding: DoubleEmbedding
    def __init__(self, embedding: _Optional[_Union[DoubleEmbedding, _Mapping]] = ...) -> None: ...

class ScoreRpcRequest(_message.Message):
    __slots__ = ("model_key", "request", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    request: ScoreRequest
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., request: _Optional[_Union[ScoreRequest, _Mapping]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class ScoreRpcResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: ScoreResponse
    def __init__(self, response: _Optional[_Union[ScoreResponse, _Mapping]] = ...) -> None: ...

class GenerateRpcRequest(_message.Message):
    __slots__ = ("model_key", "request", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    request: GenerateRequest
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class GenerateRpcResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: GenerateResponse
    def __init__(self, response: _Optional[_Union[GenerateResponse, _Mapping]] = ...) -> None: ...

class EmbedRpcRequest(_message.Message):
    __slots__ = ("model_key", "request", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    request: EmbedRequest
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., request: _Optional[_Union[EmbedRequest, _Mapping]] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class EmbedRpcResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: EmbedResponse
    def __init__(self, response: _Optional[_Union[EmbedResponse, _Mapping]] = ...) -> None: ...
