from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoreRequest(_message.Message):
    __slots__ = ("model_key", "suffix", "prefix", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    suffix: _containers.RepeatedScalarFieldContainer[str]
    prefix: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., suffix: _Optional[_Iterable[str]] = ..., prefix: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("logp",)
    LOGP_FIELD_NUMBER: _ClassVar[int]
    logp: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logp: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model_key", "text", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class DecodedText(_message.Message):
    __slots__ = ("text", "score")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    text: str
    score: float
    def __init__(self, text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("texts", "prompt_tokens", "completion_tokens")
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedCompositeFieldContainer[DecodedText]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, texts: _Optional[_Iterable[_Union[DecodedText, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class GenerateStreamItem(_message.Message):
    __slots__ = ("text", "prefix_len", "score", "scores")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_LEN_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    text: str
    prefix_len: int
    score: float
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, text: _Optional[str] = ..., prefix_len: _Optional[int] = ..., score: _Optional[float] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GenerateStreamItem]
    def __init__(self, items: _Optional[_Iterable[_Union[GenerateStreamItem, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model_key", "text", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embedding",)
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    embedding: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, embedding: _Optional[_Iterable[float]] = ...) -> None: ...

class GradientRequest(_message.Message):
    __slots__ = ("model_key", "suffix", "prefix", "extra_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    EXTRA_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    suffix: str
    prefix: str
    extra_inputs: _common_pb2.ExtraInputs
    def __init__(self, model_key: _Optional[str] = ..., suffix: _Optional[str] = ..., prefix: _Optional[str] = ..., extra_inputs: _Optional[_Union[_common_pb2.ExtraInputs, _Mapping]] = ...) -> None: ...

class GradientResponse(_message.Message):
    __slots__ = ("score", "gradients")
    class Gradient(_message.Message):
        __slots__ = ("values",)
        VALUES_FIELD_NUMBER: _ClassVar[int]
        values: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...
    class GradientsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GradientResponse.Gradient
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GradientResponse.Gradient, _Mapping]] = ...) -> None: ...
    SCORE_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    score: _containers.RepeatedScalarFieldContainer[float]
    gradients: _containers.MessageMap[str, GradientResponse.Gradient]
    def __init__(self, score: _Optional[_Iterable[float]] = ..., gradients: _Optional[_Mapping[str, GradientResponse.Gradient]] = ...) -> None: ...
