from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DisputeRequest(_message.Message):
    __slots__ = ("term", "disputed_term")
    TERM_FIELD_NUMBER: _ClassVar[int]
    DISPUTED_TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    disputed_term: int
    def __init__(self, term: _Optional[int] = ..., disputed_term: _Optional[int] = ...) -> None: ...

class DisputeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("model_path", "overrides", "checkpoint")
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    overrides: _containers.ScalarMap[str, str]
    checkpoint: str
    def __init__(self, model_path: _Optional[str] = ..., overrides: _Optional[_Mapping[str, str]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    def __init__(self, checkpoint: _Optional[str] = ...) -> None: ...

class WeightsRequest(_message.Message):
    __slots__ = ("model_id", "action", "source", "version", "expected", "partial", "pausing", "term")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    PAUSING_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    action: str
    source: str
    version: str
    expected: str
    partial: bool
    pausing: str
    term: int
    def __init__(self, model_id: _Optional[str] = ..., action: _Optional[str] = ..., source: _Optional[str] = ..., version: _Optional[str] = ..., expected: _Optional[str] = ..., partial: bool = ..., pausing: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class ReplicaWeights(_message.Message):
    __slots__ = ("address", "version", "state", "error")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    address: str
    version: str
    state: str
    error: str
    def __init__(self, address: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("server",)
    SERVER_FIELD_NUMBER: _ClassVar[int]
    server: str
    def __init__(self, server: _Optional[str] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("at_s", "level", "logger", "text")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    level: str
    logger: str
    text: str
    def __init__(self, at_s: _Optional[float] = ..., level: _Optional[str] = ..., logger: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class LogResponse(_message.Message):
    __slots__ = ("lines",)
    LINES_FIELD_NUMBER: _ClassVar[int]
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    def __init__(self, lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ...) -> None: ...
