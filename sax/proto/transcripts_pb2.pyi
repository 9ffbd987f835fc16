from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TranscribeRequest(_message.Message):
    __slots__ = ("model_key", "sound", "language", "translate", "prompt", "temperature", "words")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TRANSLATE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    sound: bytes
    language: str
    translate: bool
    prompt: str
    temperature: float
    words: bool
    def __init__(self, model_key: _Optional[str] = ..., sound: _Optional[bytes] = ..., language: _Optional[str] = ..., translate: bool = ..., prompt: _Optional[str] = ..., temperature: _Optional[float] = ..., words: bool = ...) -> None: ...

class TimedWord(_message.Message):
    __slots__ = ("start", "end", "text")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    start: float
    end: float
    text: str
    def __init__(self, start: _Optional[float] = ..., end: _Optional[float] = ..., text: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("start", "end", "text", "tokens", "seek", "temperature", "avg_logprob", "compression_ratio", "no_speech_prob", "words")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    AVG_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_RATIO_FIELD_NUMBER: _ClassVar[int]
    NO_SPEECH_PROB_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    start: float
    end: float
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    seek: int
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: _containers.RepeatedCompositeFieldContainer[TimedWord]
    def __init__(self, start: _Optional[float] = ..., end: _Optional[float] = ..., text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., seek: _Optional[int] = ..., temperature: _Optional[float] = ..., avg_logprob: _Optional[float] = ..., compression_ratio: _Optional[float] = ..., no_speech_prob: _Optional[float] = ..., words: _Optional[_Iterable[_Union[TimedWord, _Mapping]]] = ...) -> None: ...

class TranscribeResponse(_message.Message):
    __slots__ = ("segments", "language", "duration")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    language: str
    duration: float
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., language: _Optional[str] = ..., duration: _Optional[float] = ...) -> None: ...
