"""The messages of IFRT proxy, as the installed jaxlib speaks them.

jaxlib ships the client and, inside its library, the descriptors of all messages; nothing here is
copied from them. Importing this reads them once, in about half a second.

Source: `xla/python/ifrt_proxy/common/{grpc_ifrt_service,ifrt_service}.proto` of the jaxlib in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jaxlib
from google.protobuf import any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from model_server.pathways.protocol.descriptors import descriptors

_LIBRARY = "libjax_common.so"
_WELL_KNOWN = (any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2)
_FILES = (
    "xla/python/ifrt_proxy/common/grpc_ifrt_service.proto",
    "xla/python/ifrt_proxy/common/array_util.proto",
    "xla/python/ifrt/sharding_serdes.proto",
    "xla/python/ifrt/layout_serdes.proto",
    "xla/python/ifrt/custom_call_program.proto",
    "xla/python/pjrt_ifrt/pjrt_layout_serdes.proto",
    "xla/python/pjrt_ifrt/xla_compiler.proto",
    "xla/python/pjrt_ifrt/xla_sharding.proto",
)


def _pool() -> DescriptorPool:
    """Raises RuntimeError if this jaxlib has other files."""
    path = Path(jaxlib.__file__).parent / _LIBRARY
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        found = dict(descriptors(library))
    for each in _WELL_KNOWN:
        file_of = FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb)
        found[file_of.name] = file_of
    pool, added = DescriptorPool(), set[str]()
    for name in _FILES:
        for file_of in _with_needed(name, found, added):
            pool.AddSerializedFile(file_of.SerializeToString())
    return pool


def _with_needed(
    name: str, found: Mapping[str, FileDescriptorProto], added: set[str]
) -> Iterator[FileDescriptorProto]:
    """Yield a file after all those that it needs, and that were not added yet."""
    if name in added:
        return
    added.add(name)
    if name not in found:
        raise RuntimeError(
            f"jaxlib {version('jaxlib')} has no {name}: the proxy server works with jaxlib 0.10 "
            "to 0.12; install one of these"
        )
    for needed in found[name].dependency:
        yield from _with_needed(needed, found, added)
    yield found[name]


POOL = _pool()


def message(name: str) -> Any:
    """Return a message's class by its full name."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


def _proxy(name: str) -> Any:
    return message(f"xla.ifrt.proxy.{name}")


def _ifrt(name: str) -> Any:
    return message(f"xla.ifrt.{name}")


IfrtRequest = _proxy("IfrtRequest")
IfrtResponse = _proxy("IfrtResponse")
InitResponse = _proxy("InitResponse")
CompileRequest = _proxy("CompileRequest")
IfrtProxyVersion = _proxy("IfrtProxyVersion")
GrpcGetVersionRequest = _proxy("GrpcGetVersionRequest")
GrpcGetVersionResponse = _proxy("GrpcGetVersionResponse")
GrpcIfrtSessionMetadata = _proxy("GrpcIfrtSessionMetadata")
GrpcHostBufferStoreMetadata = _proxy("GrpcHostBufferStoreMetadata")
GrpcHostBufferStoreRequest = _proxy("GrpcHostBufferStoreRequest")
GrpcHostBufferStoreResponse = _proxy("GrpcHostBufferStoreResponse")
GrpcHostBufferLookupRequest = _proxy("GrpcHostBufferLookupRequest")
GrpcHostBufferLookupResponse = _proxy("GrpcHostBufferLookupResponse")
GrpcHostBufferDeleteRequest = _proxy("GrpcHostBufferDeleteRequest")
GrpcHostBufferDeleteResponse = _proxy("GrpcHostBufferDeleteResponse")
GrpcHostBufferReadFromDiskRequest = _proxy("GrpcHostBufferReadFromDiskRequest")
GrpcHostBufferReadFromDiskResponse = _proxy("GrpcHostBufferReadFromDiskResponse")

DTypeProto = _ifrt("DTypeProto")
ShapeProto = _ifrt("ShapeProto")
ShardingProto = _ifrt("ShardingProto")
ArraySpecProto = _ifrt("ArraySpecProto")
AttributeMapProto = _ifrt("AttributeMapProto")
DeviceListProto = _ifrt("DeviceListProto")
Serialized = _ifrt("Serialized")
SingleDeviceShardingProto = _ifrt("SingleDeviceShardingProto")
ConcreteEvenShardingProto = _ifrt("ConcreteEvenShardingProto")
ConcreteShardingProto = _ifrt("ConcreteShardingProto")
OpaqueShardingProto = _ifrt("OpaqueShardingProto")
HloShardingProto = _ifrt("HloShardingProto")
CustomCallProgramProto = _ifrt("CustomCallProgramProto")
CompactLayoutProto = _ifrt("CompactLayoutProto")
PjRtLayoutProto = _ifrt("PjRtLayoutProto")
XlaCompileOptionsProto = _ifrt("XlaCompileOptionsProto")
StringArrayContents = _ifrt("proto.StringArrayContents")
StatusProto = message("tensorflow.StatusProto")
OpSharding = message("xla.OpSharding")
XlaLayoutProto = message("xla.LayoutProto")
HloModuleProto = message("xla.HloModuleProto")
CompiledMemoryStatsProto = message("xla.CompiledMemoryStatsProto")
DeviceAssignmentProto = message("xla.DeviceAssignmentProto")
