from __future__ import annotations

from google.protobuf import any_pb2, struct_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from model_server.pathways import protocol as messages
from model_server.pathways.protocol import REQUESTS, RESPONSES, descriptors


def a_file(name: str) -> bytes:
    file = FileDescriptorProto(name=name, package="xla.tests", syntax="proto3")
    file.dependency.append("google/protobuf/any.proto")
    file.message_type.add(name="Sample").field.add(name="field", number=1, label=1, type=5)
    return file.SerializeToString()


def test_files_are_found_wherever_they_end() -> None:
    first, second = a_file("xla/first.proto"), a_file("xla/second.proto")
    for between in (b"", b"\0\0\0", b"\xff" * 20, b"text"):
        found = descriptors(b"ELF" + first + between + second + between)
        assert {name: file.SerializeToString() for name, file in found.items()} == {
            "xla/first.proto": first,
            "xla/second.proto": second,
        }


def test_names_of_files_alone_are_no_files() -> None:
    needs = FileDescriptorProto(dependency=["xla/other.proto"]).SerializeToString()
    assert descriptors(b"\0" + needs + b"\0\n\x0fxla/other.proto\0") == {}


def test_real_files_of_protobuf_are_found_whole() -> None:
    files = any_pb2.DESCRIPTOR.serialized_pb, struct_pb2.DESCRIPTOR.serialized_pb
    found = descriptors(files[0] + b"\0" * 7 + files[1])
    assert [each.SerializeToString() for each in found.values()] == list(files)


def test_every_kind_of_request_has_its_kind_of_response() -> None:
    assert len(REQUESTS) >= 32
    assert set(RESPONSES) == set(REQUESTS)


def test_messages_survive_a_round_trip() -> None:
    request = messages.IfrtRequest()
    request.request_metadata.op_id = 7
    request.loaded_executable_execute_request.args_handles.extend(range(300))
    again = messages.IfrtRequest.FromString(request.SerializeToString())
    assert again == request
    assert again.WhichOneof("request") == "loaded_executable_execute_request"
