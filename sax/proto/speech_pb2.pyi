from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SpeakRequest(_message.Message):
    __slots__ = ("model_key", "text", "voice", "format", "speed", "seed", "whole")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    VOICE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    voice: str
    format: str
    speed: float
    seed: int
    whole: bool
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., voice: _Optional[str] = ..., format: _Optional[str] = ..., speed: _Optional[float] = ..., seed: _Optional[int] = ..., whole: bool = ...) -> None: ...

class SpeakResponse(_message.Message):
    __slots__ = ("data", "tokens", "frames", "duration")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    tokens: int
    frames: int
    duration: float
    def __init__(self, data: _Optional[bytes] = ..., tokens: _Optional[int] = ..., frames: _Optional[int] = ..., duration: _Optional[float] = ...) -> None: ...
