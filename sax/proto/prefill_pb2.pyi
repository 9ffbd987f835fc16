from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Contract(_message.Message):
    __slots__ = ("source", "page_size", "kv_dtype", "layers", "kv_heads", "key_dim", "value_dim", "mesh", "hosts", "jaxlib", "draft", "near_window")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_DIM_FIELD_NUMBER: _ClassVar[int]
    VALUE_DIM_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    JAXLIB_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    NEAR_WINDOW_FIELD_NUMBER: _ClassVar[int]
    source: str
    page_size: int
    kv_dtype: str
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mesh: str
    hosts: int
    jaxlib: str
    draft: str
    near_window: int
    def __init__(self, source: _Optional[str] = ..., page_size: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., layers: _Optional[int] = ..., kv_heads: _Optional[int] = ..., key_dim: _Optional[int] = ..., value_dim: _Optional[int] = ..., mesh: _Optional[str] = ..., hosts: _Optional[int] = ..., jaxlib: _Optional[str] = ..., draft: _Optional[str] = ..., near_window: _Optional[int] = ...) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("model_key", "contract", "tokens", "key", "account", "member", "priority", "salt", "sampling")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    contract: Contract
    tokens: _containers.RepeatedScalarFieldContainer[int]
    key: int
    account: str
    member: str
    priority: int
    salt: str
    sampling: bytes
    def __init__(self, model_key: _Optional[str] = ..., contract: _Optional[_Union[Contract, _Mapping]] = ..., tokens: _Optional[_Iterable[int]] = ..., key: _Optional[int] = ..., account: _Optional[str] = ..., member: _Optional[str] = ..., priority: _Optional[int] = ..., salt: _Optional[str] = ..., sampling: _Optional[bytes] = ...) -> None: ...

class TopToken(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("addresses", "expires_s", "token", "logprob", "top")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    expires_s: float
    token: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopToken]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., expires_s: _Optional[float] = ..., token: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopToken, _Mapping]]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: int
    def __init__(self, key: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
