from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Location(_message.Message):
    __slots__ = ("location",)
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    location: str
    def __init__(self, location: _Optional[str] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("fs_root", "admin_acl")
    FS_ROOT_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ACL_FIELD_NUMBER: _ClassVar[int]
    fs_root: str
    admin_acl: str
    def __init__(self, fs_root: _Optional[str] = ..., admin_acl: _Optional[str] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("models", "last_generation")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    LAST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    last_generation: int
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., last_generation: _Optional[int] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("model_id", "model_path", "checkpoint_path", "requested_num_replicas", "acls", "admin_acl", "overrides", "uuid", "method_names", "revision", "autoscaling", "placement", "canary")
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ACL_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAMES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AUTOSCALING_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    model_path: str
    checkpoint_path: str
    requested_num_replicas: int
    acls: _common_pb2.AccessControlLists
    admin_acl: str
    overrides: _containers.ScalarMap[str, str]
    uuid: bytes
    method_names: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    autoscaling: Autoscaling
    placement: Placement
    canary: Canary
    def __init__(self, model_id: _Optional[str] = ..., model_path: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., requested_num_replicas: _Optional[int] = ..., acls: _Optional[_Union[_common_pb2.AccessControlLists, _Mapping]] = ..., admin_acl: _Optional[str] = ..., overrides: _Optional[_Mapping[str, str]] = ..., uuid: _Optional[bytes] = ..., method_names: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., autoscaling: _Optional[_Union[Autoscaling, _Mapping]] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("uuid", "checkpoint_path", "overrides", "percent")
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
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    checkpoint_path: str
    overrides: _containers.ScalarMap[str, str]
    percent: float
    def __init__(self, uuid: _Optional[bytes] = ..., checkpoint_path: _Optional[str] = ..., overrides: _Optional[_Mapping[str, str]] = ..., percent: _Optional[float] = ...) -> None: ...

class Autoscaling(_message.Message):
    __slots__ = ("min_replicas", "max_replicas", "target_queue")
    MIN_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    TARGET_QUEUE_FIELD_NUMBER: _ClassVar[int]
    min_replicas: int
    max_replicas: int
    target_queue: float
    def __init__(self, min_replicas: _Optional[int] = ..., max_replicas: _Optional[int] = ..., target_queue: _Optional[float] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("tags", "devices", "memory_bytes")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    devices: int
    memory_bytes: int
    def __init__(self, tags: _Optional[_Iterable[str]] = ..., devices: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("address", "status", "reason", "progress", "note", "canary")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    address: str
    status: _common_pb2.ModelStatus
    reason: str
    progress: _common_pb2.Progress
    note: str
    canary: bool
    def __init__(self, address: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.ModelStatus, str]] = ..., reason: _Optional[str] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., note: _Optional[str] = ..., canary: bool = ...) -> None: ...

class PublishedModel(_message.Message):
    __slots__ = ("model", "modelet_addresses", "ready_replicas", "replicas", "wanted_replicas", "scaling_reason", "published_at_s", "warnings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODELET_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    READY_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WANTED_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SCALING_REASON_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_S_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    modelet_addresses: _containers.RepeatedScalarFieldContainer[str]
    ready_replicas: int
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    wanted_replicas: int
    scaling_reason: str
    published_at_s: float
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ..., modelet_addresses: _Optional[_Iterable[str]] = ..., ready_replicas: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., wanted_replicas: _Optional[int] = ..., scaling_reason: _Optional[str] = ..., published_at_s: _Optional[float] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelServer(_message.Message):
    __slots__ = ("chip_type", "chip_topology", "servable_model_paths", "tags")
    class ChipType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHIP_TYPE_UNKNOWN: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V2: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V3: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V4: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V4I: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V5E: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_TPU_V6E: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_P100: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_V100: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_T4: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_A100: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_H100: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_GPU_L4: _ClassVar[ModelServer.ChipType]
        CHIP_TYPE_CPU: _ClassVar[ModelServer.ChipType]
    CHIP_TYPE_UNKNOWN: ModelServer.ChipType
    CHIP_TYPE_TPU_V2: ModelServer.ChipType
    CHIP_TYPE_TPU_V3: ModelServer.ChipType
    CHIP_TYPE_TPU_V4: ModelServer.ChipType
    CHIP_TYPE_TPU_V4I: ModelServer.ChipType
    CHIP_TYPE_TPU_V5E: ModelServer.ChipType
    CHIP_TYPE_TPU_V6E: ModelServer.ChipType
    CHIP_TYPE_GPU_P100: ModelServer.ChipType
    CHIP_TYPE_GPU_V100: ModelServer.ChipType
    CHIP_TYPE_GPU_T4: ModelServer.ChipType
    CHIP_TYPE_GPU_A100: ModelServer.ChipType
    CHIP_TYPE_GPU_H100: ModelServer.ChipType
    CHIP_TYPE_GPU_L4: ModelServer.ChipType
    CHIP_TYPE_CPU: ModelServer.ChipType
    class ChipTopology(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHIP_TOPOLOGY_UNKNOWN: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_1: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_1X1: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X2: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X2: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_16X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_16X32: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_32X32: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_1X1X1: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_1X2X1: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X2X1: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X2X2: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X2X4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_2X4X4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X4X4: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X4X8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X4X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X8X8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X8X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X16X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_4X16X32: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X8X8: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X8X12: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X8X16: _ClassVar[ModelServer.ChipTopology]
        CHIP_TOPOLOGY_8X16X16: _ClassVar[ModelServer.ChipTopology]
    CHIP_TOPOLOGY_UNKNOWN: ModelServer.ChipTopology
    CHIP_TOPOLOGY_1: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_1X1: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X2: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X2: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_16X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_16X32: ModelServer.ChipTopology
    CHIP_TOPOLOGY_32X32: ModelServer.ChipTopology
    CHIP_TOPOLOGY_1X1X1: ModelServer.ChipTopology
    CHIP_TOPOLOGY_1X2X1: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X2X1: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X2X2: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X2X4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_2X4X4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X4X4: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X4X8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X4X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X8X8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X8X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X16X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_4X16X32: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X8X8: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X8X12: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X8X16: ModelServer.ChipTopology
    CHIP_TOPOLOGY_8X16X16: ModelServer.ChipTopology
    CHIP_TYPE_FIELD_NUMBER: _ClassVar[int]
    CHIP_TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    SERVABLE_MODEL_PATHS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    chip_type: ModelServer.ChipType
    chip_topology: ModelServer.ChipTopology
    servable_model_paths: _containers.RepeatedScalarFieldContainer[str]
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, chip_type: _Optional[_Union[ModelServer.ChipType, str]] = ..., chip_topology: _Optional[_Union[ModelServer.ChipTopology, str]] = ..., servable_model_paths: _Optional[_Iterable[str]] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelServerTypeStat(_message.Message):
    __slots__ = ("chip_type", "chip_topology", "num_replicas")
    CHIP_TYPE_FIELD_NUMBER: _ClassVar[int]
    CHIP_TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    chip_type: ModelServer.ChipType
    chip_topology: ModelServer.ChipTopology
    num_replicas: int
    def __init__(self, chip_type: _Optional[_Union[ModelServer.ChipType, str]] = ..., chip_topology: _Optional[_Union[ModelServer.ChipTopology, str]] = ..., num_replicas: _Optional[int] = ...) -> None: ...

class Servable(_message.Message):
    __slots__ = ("model_id", "status", "uuid", "reason", "progress", "memory_bytes", "methods", "queued_requests", "running_requests", "arrived_requests", "note", "memory_parts", "kernels", "activity")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PARTS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    status: _common_pb2.ModelStatus
    uuid: bytes
    reason: str
    progress: _common_pb2.Progress
    memory_bytes: int
    methods: _containers.RepeatedScalarFieldContainer[str]
    queued_requests: int
    running_requests: int
    arrived_requests: int
    note: str
    memory_parts: _common_pb2.MemoryParts
    kernels: str
    activity: _common_pb2.Activity
    def __init__(self, model_id: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.ModelStatus, str]] = ..., uuid: _Optional[bytes] = ..., reason: _Optional[str] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., memory_bytes: _Optional[int] = ..., methods: _Optional[_Iterable[str]] = ..., queued_requests: _Optional[int] = ..., running_requests: _Optional[int] = ..., arrived_requests: _Optional[int] = ..., note: _Optional[str] = ..., memory_parts: _Optional[_Union[_common_pb2.MemoryParts, _Mapping]] = ..., kernels: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, _Mapping]] = ...) -> None: ...

class JoinedModelServer(_message.Message):
    __slots__ = ("model_server", "address", "debug_address", "data_address", "last_join_ms", "loaded_models", "failure_reasons", "is_dormant", "pending_requests", "errors_per_second", "successes_per_second", "mean_latency_in_seconds", "incarnation_id", "memory_total_bytes", "memory_used_bytes", "servables", "devices")
    class LoadedModelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _common_pb2.ModelStatus
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_common_pb2.ModelStatus, str]] = ...) -> None: ...
    class FailureReasonsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_SERVER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEBUG_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_JOIN_MS_FIELD_NUMBER: _ClassVar[int]
    LOADED_MODELS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REASONS_FIELD_NUMBER: _ClassVar[int]
    IS_DORMANT_FIELD_NUMBER: _ClassVar[int]
    PENDING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MEAN_LATENCY_IN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVABLES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    model_server: ModelServer
    address: str
    debug_address: str
    data_address: str
    last_join_ms: int
    loaded_models: _containers.ScalarMap[str, _common_pb2.ModelStatus]
    failure_reasons: _containers.ScalarMap[str, str]
    is_dormant: bool
    pending_requests: int
    errors_per_second: float
    successes_per_second: float
    mean_latency_in_seconds: float
    incarnation_id: str
    memory_total_bytes: int
    memory_used_bytes: int
    servables: _containers.RepeatedCompositeFieldContainer[Servable]
    devices: int
    def __init__(self, model_server: _Optional[_Union[ModelServer, _Mapping]] = ..., address: _Optional[str] = ..., debug_address: _Optional[str] = ..., data_address: _Optional[str] = ..., last_join_ms: _Optional[int] = ..., loaded_models: _Optional[_Mapping[str, _common_pb2.ModelStatus]] = ..., failure_reasons: _Optional[_Mapping[str, str]] = ..., is_dormant: bool = ..., pending_requests: _Optional[int] = ..., errors_per_second: _Optional[float] = ..., successes_per_second: _Optional[float] = ..., mean_latency_in_seconds: _Optional[float] = ..., incarnation_id: _Optional[str] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., servables: _Optional[_Iterable[_Union[Servable, _Mapping]]] = ..., devices: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpublishRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class UnpublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("published_models", "servers")
    PUBLISHED_MODELS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    published_models: _containers.RepeatedCompositeFieldContainer[PublishedModel]
    servers: _containers.RepeatedCompositeFieldContainer[JoinedModelServer]
    def __init__(self, published_models: _Optional[_Iterable[_Union[PublishedModel, _Mapping]]] = ..., servers: _Optional[_Iterable[_Union[JoinedModelServer, _Mapping]]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("model_server_type_stats", "num_servers_by_servable_model_path")
    class NumServersByServableModelPathEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_SERVER_TYPE_STATS_FIELD_NUMBER: _ClassVar[int]
    NUM_SERVERS_BY_SERVABLE_MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    model_server_type_stats: _containers.RepeatedCompositeFieldContainer[ModelServerTypeStat]
    num_servers_by_servable_model_path: _containers.ScalarMap[str, int]
    def __init__(self, model_server_type_stats: _Optional[_Iterable[_Union[ModelServerTypeStat, _Mapping]]] = ..., num_servers_by_servable_model_path: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WatchLocRequest(_message.Message):
    __slots__ = ("model_id", "admin_server_id", "seqno")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    ADMIN_SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    admin_server_id: str
    seqno: int
    def __init__(self, model_id: _Optional[str] = ..., admin_server_id: _Optional[str] = ..., seqno: _Optional[int] = ...) -> None: ...

class WatchResult(_message.Message):
    __slots__ = ("next_seqno", "has_fullset", "values", "changelog")
    class Mutation(_message.Message):
        __slots__ = ("addition", "deletion")
        ADDITION_FIELD_NUMBER: _ClassVar[int]
        DELETION_FIELD_NUMBER: _ClassVar[int]
        addition: str
        deletion: str
        def __init__(self, addition: _Optional[str] = ..., deletion: _Optional[str] = ...) -> None: ...
    NEXT_SEQNO_FIELD_NUMBER: _ClassVar[int]
    HAS_FULLSET_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CHANGELOG_FIELD_NUMBER: _ClassVar[int]
    next_seqno: int
    has_fullset: bool
    values: _containers.RepeatedScalarFieldContainer[str]
    changelog: _containers.RepeatedCompositeFieldContainer[WatchResult.Mutation]
    def __init__(self, next_seqno: _Optional[int] = ..., has_fullset: bool = ..., values: _Optional[_Iterable[str]] = ..., changelog: _Optional[_Iterable[_Union[WatchResult.Mutation, _Mapping]]] = ...) -> None: ...

class CanaryShare(_message.Message):
    __slots__ = ("uuid", "percent", "addresses")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    uuid: bytes
    percent: float
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, uuid: _Optional[bytes] = ..., percent: _Optional[float] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchLocResponse(_message.Message):
    __slots__ = ("admin_server_id", "result", "canary")
    ADMIN_SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    admin_server_id: str
    result: WatchResult
    canary: CanaryShare
    def __init__(self, admin_server_id: _Optional[str] = ..., result: _Optional[_Union[WatchResult, _Mapping]] = ..., canary: _Optional[_Union[CanaryShare, _Mapping]] = ...) -> None: ...

class WaitForReadyRequest(_message.Message):
    __slots__ = ("model_id", "num_replicas")
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    num_replicas: int
    def __init__(self, model_id: _Optional[str] = ..., num_replicas: _Optional[int] = ...) -> None: ...

class WaitForReadyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("address", "debug_address", "data_address", "model_server", "incarnation_id", "memory_total_bytes", "devices", "leaving")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEBUG_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_SERVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    address: str
    debug_address: str
    data_address: str
    model_server: ModelServer
    incarnation_id: str
    memory_total_bytes: int
    devices: int
    leaving: bool
    def __init__(self, address: _Optional[str] = ..., debug_address: _Optional[str] = ..., data_address: _Optional[str] = ..., model_server: _Optional[_Union[ModelServer, _Mapping]] = ..., incarnation_id: _Optional[str] = ..., memory_total_bytes: _Optional[int] = ..., devices: _Optional[int] = ..., leaving: bool = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
