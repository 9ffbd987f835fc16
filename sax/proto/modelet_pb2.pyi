from sax.proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadRequest(_message.Message):
    __slots__ = ("model_key", "model_path", "checkpoint_path", "acls", "overrides", "uuid", "term")
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    model_path: str
    checkpoint_path: str
    acls: _common_pb2.AccessControlLists
    overrides: _containers.ScalarMap[str, str]
    uuid: bytes
    term: int
    def __init__(self, model_key: _Optional[str] = ..., model_path: _Optional[str] = ..., checkpoint_path: _Optional[str] = ..., acls: _Optional[_Union[_common_pb2.AccessControlLists, _Mapping]] = ..., overrides: _Optional[_Mapping[str, str]] = ..., uuid: _Optional[bytes] = ..., term: _Optional[int] = ...) -> None: ...

class LoadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateLoadedRequest(_message.Message):
    __slots__ = ("model_key", "acls", "checkpoint_path", "uuid", "term")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    ACLS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    acls: _common_pb2.AccessControlLists
    checkpoint_path: str
    uuid: bytes
    term: int
    def __init__(self, model_key: _Optional[str] = ..., acls: _Optional[_Union[_common_pb2.AccessControlLists, _Mapping]] = ..., checkpoint_path: _Optional[str] = ..., uuid: _Optional[bytes] = ..., term: _Optional[int] = ...) -> None: ...

class UpdateLoadedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ("model_key", "term")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    term: int
    def __init__(self, model_key: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class UnloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("model_key", "method_names", "signatures", "export_path", "serialized_model_format", "rng_seed_mode", "enable_gpu_multi_device_execution")
    class SerializedModelFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SERIALIZED_MODEL_FORMAT_UNKNOWN: _ClassVar[ExportRequest.SerializedModelFormat]
        TF_SAVEDMODEL_V0: _ClassVar[ExportRequest.SerializedModelFormat]
        JAX_EXPORT: _ClassVar[ExportRequest.SerializedModelFormat]
    SERIALIZED_MODEL_FORMAT_UNKNOWN: ExportRequest.SerializedModelFormat
    TF_SAVEDMODEL_V0: ExportRequest.SerializedModelFormat
    JAX_EXPORT: ExportRequest.SerializedModelFormat
    class RngSeedMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RNG_SEED_MODE_UNSPECIFIED: _ClassVar[ExportRequest.RngSeedMode]
        STATELESS: _ClassVar[ExportRequest.RngSeedMode]
        STATEFUL: _ClassVar[ExportRequest.RngSeedMode]
        FIXED: _ClassVar[ExportRequest.RngSeedMode]
    RNG_SEED_MODE_UNSPECIFIED: ExportRequest.RngSeedMode
    STATELESS: ExportRequest.RngSeedMode
    STATEFUL: ExportRequest.RngSeedMode
    FIXED: ExportRequest.RngSeedMode
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    METHOD_NAMES_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    EXPORT_PATH_FIELD_NUMBER: _ClassVar[int]
    SERIALIZED_MODEL_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RNG_SEED_MODE_FIELD_NUMBER: _ClassVar[int]
    ENABLE_GPU_MULTI_DEVICE_EXECUTION_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    method_names: _containers.RepeatedScalarFieldContainer[str]
    signatures: _containers.RepeatedScalarFieldContainer[str]
    export_path: str
    serialized_model_format: ExportRequest.SerializedModelFormat
    rng_seed_mode: ExportRequest.RngSeedMode
    enable_gpu_multi_device_execution: bool
    def __init__(self, model_key: _Optional[str] = ..., method_names: _Optional[_Iterable[str]] = ..., signatures: _Optional[_Iterable[str]] = ..., export_path: _Optional[str] = ..., serialized_model_format: _Optional[_Union[ExportRequest.SerializedModelFormat, str]] = ..., rng_seed_mode: _Optional[_Union[ExportRequest.RngSeedMode, str]] = ..., enable_gpu_multi_device_execution: bool = ...) -> None: ...

class ExportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("include_failure_reasons", "include_method_stats", "term")
    INCLUDE_FAILURE_REASONS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_METHOD_STATS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    include_failure_reasons: bool
    include_method_stats: bool
    term: int
    def __init__(self, include_failure_reasons: bool = ..., include_method_stats: bool = ..., term: _Optional[int] = ...) -> None: ...

class Need(_message.Message):
    __slots__ = ("devices", "memory_bytes", "weight_bytes")
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    devices: int
    memory_bytes: int
    weight_bytes: int
    def __init__(self, devices: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., weight_bytes: _Optional[int] = ...) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("models", "server_status")
    class MethodStats(_message.Message):
        __slots__ = ("method", "pending_reqs", "errors_per_second", "successes_per_second", "mean_latency_on_success_per_second", "p50_latency_on_success_per_second", "p95_latency_on_success_per_second", "p99_latency_on_success_per_second", "recent_batch_sizes")
        METHOD_FIELD_NUMBER: _ClassVar[int]
        PENDING_REQS_FIELD_NUMBER: _ClassVar[int]
        ERRORS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        SUCCESSES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        MEAN_LATENCY_ON_SUCCESS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        P50_LATENCY_ON_SUCCESS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        P95_LATENCY_ON_SUCCESS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        P99_LATENCY_ON_SUCCESS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
        RECENT_BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
        method: str
        pending_reqs: int
        errors_per_second: float
        successes_per_second: float
        mean_latency_on_success_per_second: float
        p50_latency_on_success_per_second: float
        p95_latency_on_success_per_second: float
        p99_latency_on_success_per_second: float
        recent_batch_sizes: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, method: _Optional[str] = ..., pending_reqs: _Optional[int] = ..., errors_per_second: _Optional[float] = ..., successes_per_second: _Optional[float] = ..., mean_latency_on_success_per_second: _Optional[float] = ..., p50_latency_on_success_per_second: _Optional[float] = ..., p95_latency_on_success_per_second: _Optional[float] = ..., p99_latency_on_success_per_second: _Optional[float] = ..., recent_batch_sizes: _Optional[_Iterable[int]] = ...) -> None: ...
    class ModelWithStatus(_message.Message):
        __slots__ = ("model_key", "model_status", "failure_reason", "method_stats", "progress", "uuid", "memory_bytes", "methods", "queued_requests", "running_requests", "arrived_requests", "acls", "need", "note", "memory_parts", "kernels", "activity", "own")
        MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
        MODEL_STATUS_FIELD_NUMBER: _ClassVar[int]
        FAILURE_REASON_FIELD_NUMBER: _ClassVar[int]
        METHOD_STATS_FIELD_NUMBER: _ClassVar[int]
        PROGRESS_FIELD_NUMBER: _ClassVar[int]
        UUID_FIELD_NUMBER: _ClassVar[int]
        MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
        METHODS_FIELD_NUMBER: _ClassVar[int]
        QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        ARRIVED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
        ACLS_FIELD_NUMBER: _ClassVar[int]
        NEED_FIELD_NUMBER: _ClassVar[int]
        NOTE_FIELD_NUMBER: _ClassVar[int]
        MEMORY_PARTS_FIELD_NUMBER: _ClassVar[int]
        KERNELS_FIELD_NUMBER: _ClassVar[int]
        ACTIVITY_FIELD_NUMBER: _ClassVar[int]
        OWN_FIELD_NUMBER: _ClassVar[int]
        model_key: str
        model_status: _common_pb2.ModelStatus
        failure_reason: str
        method_stats: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.MethodStats]
        progress: _common_pb2.Progress
        uuid: bytes
        memory_bytes: int
        methods: _containers.RepeatedScalarFieldContainer[str]
        queued_requests: int
        running_requests: int
        arrived_requests: int
        acls: _common_pb2.AccessControlLists
        need: Need
        note: str
        memory_parts: _common_pb2.MemoryParts
        kernels: str
        activity: _common_pb2.Activity
        own: bool
        def __init__(self, model_key: _Optional[str] = ..., model_status: _Optional[_Union[_common_pb2.ModelStatus, str]] = ..., failure_reason: _Optional[str] = ..., method_stats: _Optional[_Iterable[_Union[GetStatusResponse.MethodStats, _Mapping]]] = ..., progress: _Optional[_Union[_common_pb2.Progress, _Mapping]] = ..., uuid: _Optional[bytes] = ..., memory_bytes: _Optional[int] = ..., methods: _Optional[_Iterable[str]] = ..., queued_requests: _Optional[int] = ..., running_requests: _Optional[int] = ..., arrived_requests: _Optional[int] = ..., acls: _Optional[_Union[_common_pb2.AccessControlLists, _Mapping]] = ..., need: _Optional[_Union[Need, _Mapping]] = ..., note: _Optional[str] = ..., memory_parts: _Optional[_Union[_common_pb2.MemoryParts, _Mapping]] = ..., kernels: _Optional[str] = ..., activity: _Optional[_Union[_common_pb2.Activity, _Mapping]] = ..., own: bool = ...) -> None: ...
    class ServerStatus(_message.Message):
        __slots__ = ("state", "explanation", "stats", "incarnation_id", "memory_total_bytes", "memory_used_bytes", "draining")
        class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            UNDEFINED: _ClassVar[GetStatusResponse.ServerStatus.State]
            ACTIVE: _ClassVar[GetStatusResponse.ServerStatus.State]
            DORMANT: _ClassVar[GetStatusResponse.ServerStatus.State]
        UNDEFINED: GetStatusResponse.ServerStatus.State
        ACTIVE: GetStatusResponse.ServerStatus.State
        DORMANT: GetStatusResponse.ServerStatus.State
        class Stats(_message.Message):
            __slots__ = ("early_rejection_errors_per_second",)
            EARLY_REJECTION_ERRORS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
            early_rejection_errors_per_second: float
            def __init__(self, early_rejection_errors_per_second: _Optional[float] = ...) -> None: ...
        STATE_FIELD_NUMBER: _ClassVar[int]
        EXPLANATION_FIELD_NUMBER: _ClassVar[int]
        STATS_FIELD_NUMBER: _ClassVar[int]
        INCARNATION_ID_FIELD_NUMBER: _ClassVar[int]
        MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
        MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
        DRAINING_FIELD_NUMBER: _ClassVar[int]
        state: GetStatusResponse.ServerStatus.State
        explanation: str
        stats: GetStatusResponse.ServerStatus.Stats
        incarnation_id: str
        memory_total_bytes: int
        memory_used_bytes: int
        draining: bool
        def __init__(self, state: _Optional[_Union[GetStatusResponse.ServerStatus.State, str]] = ..., explanation: _Optional[str] = ..., stats: _Optional[_Union[GetStatusResponse.ServerStatus.Stats, _Mapping]] = ..., incarnation_id: _Optional[str] = ..., memory_total_bytes: _Optional[int] = ..., memory_used_bytes: _Optional[int] = ..., draining: bool = ...) -> None: ...
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SERVER_STATUS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[GetStatusResponse.ModelWithStatus]
    server_status: GetStatusResponse.ServerStatus
    def __init__(self, models: _Optional[_Iterable[_Union[GetStatusResponse.ModelWithStatus, _Mapping]]] = ..., server_status: _Optional[_Union[GetStatusResponse.ServerStatus, _Mapping]] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("model_key", "checkpoint_path")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    checkpoint_path: str
    def __init__(self, model_key: _Optional[str] = ..., checkpoint_path: _Optional[str] = ...) -> None: ...

class SaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeUpRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeUpResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
