from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[ModelStatus]
    LOADING: _ClassVar[ModelStatus]
    LOADED: _ClassVar[ModelStatus]
    FAILED: _ClassVar[ModelStatus]
    UNLOADING: _ClassVar[ModelStatus]
NONE: ModelStatus
LOADING: ModelStatus
LOADED: ModelStatus
FAILED: ModelStatus
UNLOADING: ModelStatus

class AccessControlLists(_message.Message):
    __slots__ = ("items",)
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.ScalarMap[str, str]
    def __init__(self, items: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class ExtraInputs(_message.Message):
    __slots__ = ("items", "tensors", "strings")
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    class StringsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.ScalarMap[str, float]
    tensors: _containers.MessageMap[str, Tensor]
    strings: _containers.ScalarMap[str, str]
    def __init__(self, items: _Optional[_Mapping[str, float]] = ..., tensors: _Optional[_Mapping[str, Tensor]] = ..., strings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class MemoryParts(_message.Message):
    __slots__ = ("weight_bytes", "kv_bytes", "state_bytes", "workspace_bytes", "least_bytes", "slots", "context", "tokens")
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEAST_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    workspace_bytes: int
    least_bytes: int
    slots: int
    context: int
    tokens: int
    def __init__(self, weight_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., state_bytes: _Optional[int] = ..., workspace_bytes: _Optional[int] = ..., least_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., context: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("slots", "slots_used", "pages", "pages_used", "prompt_tokens", "cached_tokens", "generated_tokens", "answers_begun", "first_token_s", "answers_timed", "token_interval_s")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_TIMED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    slots: int
    slots_used: int
    pages: int
    pages_used: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    answers_begun: int
    first_token_s: float
    answers_timed: int
    token_interval_s: float
    def __init__(self, slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., pages: _Optional[int] = ..., pages_used: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., answers_begun: _Optional[int] = ..., first_token_s: _Optional[float] = ..., answers_timed: _Optional[int] = ..., token_interval_s: _Optional[float] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("phase", "done", "total", "unit")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    unit: str
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., unit: _Optional[str] = ...) -> None: ...
