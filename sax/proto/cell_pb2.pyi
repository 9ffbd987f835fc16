from sax.proto import control_pb2 as _control_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RollbackRequest(_message.Message):
    __slots__ = ("model_id", "uuid")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    uuid: bytes
    def __init__(self, model_id: _Optional[str] = ..., uuid: _Optional[bytes] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("uuid", "checkpoint_path", "overrides", "at_s", "by", "current")
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    UUID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    checkpoint_path: str
    overrides: _containers.ScalarMap[str, str]
    at_s: float
    by: str
    current: bool
    def __init__(self, uuid: _Optional[bytes] = ..., checkpoint_path: _Optional[str] = ..., overrides: _Optional[_Mapping[str, str]] = ..., at_s: _Optional[float] = ..., by: _Optional[str] = ..., current: bool = ...) -> None: ...

class VersionsRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class VersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, versions: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at_s", "kind", "model_id", "by", "uuid", "text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at_s: float
    kind: str
    model_id: str
    by: str
    uuid: bytes
    text: str
    def __init__(self, sequence: _Optional[int] = ..., at_s: _Optional[float] = ..., kind: _Optional[str] = ..., model_id: _Optional[str] = ..., by: _Optional[str] = ..., uuid: _Optional[bytes] = ..., text: _Optional[str] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("model_id", "before", "limit")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    before: int
    limit: int
    def __init__(self, model_id: _Optional[str] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class EventsResponse(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ...) -> None: ...

class DemandRequest(_message.Message):
    __slots__ = ("model_id", "waiting", "caller")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    waiting: int
    caller: str
    def __init__(self, model_id: _Optional[str] = ..., waiting: _Optional[int] = ..., caller: _Optional[str] = ...) -> None: ...

class DemandResponse(_message.Message):
    __slots__ = ("starting", "reason")
    STARTING_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    starting: bool
    reason: str
    def __init__(self, starting: bool = ..., reason: _Optional[str] = ...) -> None: ...

class RightsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RightsResponse(_message.Message):
    __slots__ = ("publish", "models")
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    publish: bool
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, publish: bool = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class CanaryRequest(_message.Message):
    __slots__ = ("model_id", "checkpoint_path", "overrides", "percent", "revision")
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    checkpoint_path: str
    overrides: _containers.ScalarMap[str, str]
    percent: float
    revision: int
    def __init__(self, model_id: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., overrides: _Optional[_Mapping[str, str]] = ..., percent: _Optional[float] = ..., revision: _Optional[int] = ...) -> None: ...

class CanaryResponse(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("uuid",)
    UUID_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    def __init__(self, uuid: _Optional[bytes] = ...) -> None: ...

class CellAclRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CellAclResponse(_message.Message):
    __slots__ = ("admin_acl", "enforced")
    ADMIN_ACL_FIELD_NUMBER: _ClassVar[int]
    ENFORCED_FIELD_NUMBER: _ClassVar[int]
    admin_acl: str
    enforced: bool
    def __init__(self, admin_acl: _Optional[str] = ..., enforced: bool = ...) -> None: ...

class SetCellAclRequest(_message.Message):
    __slots__ = ("admin_acl",)
    ADMIN_ACL_FIELD_NUMBER: _ClassVar[int]
    admin_acl: str
    def __init__(self, admin_acl: _Optional[str] = ...) -> None: ...

class SetCellAclResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WeightsResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[_control_pb2.ReplicaWeights]
    def __init__(self, replicas: _Optional[_Iterable[_Union[_control_pb2.ReplicaWeights, _Mapping]]] = ...) -> None: ...
