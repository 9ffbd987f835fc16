"""The messages of IFRT proxy, as the installed jaxlib speaks them.

jaxlib ships the client and, inside its library, the descriptors of all messages; nothing here is
copied from them. Importing this reads them once, in about half a second.

Source: `xla/python/ifrt_proxy/common/{grpc_ifrt_service,ifrt_service}.proto` of the jaxlib in use.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import jaxlib
from google.protobuf import any_pb2, duration_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sax.errors import InvalidRequest

# Finds the descriptors of protocol buffers inside a compiled library.
#
# Generated C++ code keeps the FileDescriptorProto of each file as plain bytes, without its length:
# it ends where no further field of one follows.

_START = re.compile(rb"\x0a([\x05-\x7f])((?:xla|google)/[\w/.\-]+\.proto)")
_FIELDS = {each.number: each for each in FileDescriptorProto.DESCRIPTOR.fields}
_VARINT, _BYTES = 0, 2


class Library(Protocol):
    """bytes, or a memory-mapped file."""

    def __getitem__(self, index: slice, /) -> bytes: ...


def descriptors(library: Library) -> Mapping[str, FileDescriptorProto]:
    """Return the files of `xla/` and `google/` in a library, by name."""
    found: dict[str, FileDescriptorProto] = {}
    for start, name in _starts(library):
        if name not in found and (file := _parsed(library, start)) is not None:
            found[name] = file
    return found


def _starts(library: Library) -> Iterator[tuple[int, str]]:
    for match in _START.finditer(library):  # pyright: ignore[reportArgumentType, reportCallIssue]
        length, name = match.groups()
        if length[0] == len(name):
            yield match.start(), name.decode()


def _parsed(library: Library, start: int) -> FileDescriptorProto | None:
    """Return the file that starts there; None: its name only."""
    file = FileDescriptorProto.FromString(library[start : _end(library, start)])
    return file if file.message_type or file.enum_type or file.service else None


def _end(library: Library, start: int) -> int:
    """Return where the fields of a FileDescriptorProto end."""
    at, seen = start, set[int]()
    while True:
        tag, after = _varint(library, at)
        field, kind = _FIELDS.get(tag >> 3), tag & 7
        if field is None or (field.number in seen and not field.is_repeated):
            return at
        if kind != (_BYTES if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE) else _VARINT):
            return at
        value, after = _varint(library, after)
        seen.add(field.number)
        at = after + value if kind == _BYTES else after


def _varint(library: Library, at: int) -> tuple[int, int]:
    """Return the number there, and where it ends. 0 where none can be."""
    value = 0
    for place, byte in enumerate(library[at : at + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return value, at + place + 1
    return 0, at


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


def parsed(raw: bytes, kind: Any) -> Any:
    """Return a message of a class from its bytes. Raises InvalidRequest."""
    try:
        return kind.FromString(raw)
    except DecodeError as exc:
        name = kind.DESCRIPTOR.name
        raise InvalidRequest(f"bytes that are no {name} ({exc}): use jaxlib's client") from exc


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
GrpcHostBufferLookupRequest = _proxy("GrpcHostBufferLookupRequest")
GrpcHostBufferLookupResponse = _proxy("GrpcHostBufferLookupResponse")
GrpcHostBufferDeleteRequest = _proxy("GrpcHostBufferDeleteRequest")
GrpcHostBufferReadFromDiskRequest = _proxy("GrpcHostBufferReadFromDiskRequest")

DTypeProto = _ifrt("DTypeProto")
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
XlaCompileOptionsProto = _ifrt("XlaCompileOptionsProto")
StringArrayContents = _ifrt("proto.StringArrayContents")
OpSharding = message("xla.OpSharding")
HloModuleProto = message("xla.HloModuleProto")
CompiledMemoryStatsProto = message("xla.CompiledMemoryStatsProto")

_SUFFIX = "_request"

# "compile_request", ...: the fields of IfrtRequest, in the order of their numbers.
REQUESTS: tuple[str, ...] = tuple(
    field.name
    for field in sorted(
        IfrtRequest.DESCRIPTOR.oneofs_by_name["request"].fields, key=lambda each: each.number
    )
)
# "compile_response", ...: the field of the answer, by that of the request.
RESPONSES: dict[str, str] = {
    name: name.removesuffix(_SUFFIX) + "_response"
    for name in REQUESTS
    if name.removesuffix(_SUFFIX) + "_response" in IfrtResponse.DESCRIPTOR.fields_by_name
}
