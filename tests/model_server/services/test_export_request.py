"""A request to export names methods and signatures; what cannot be written is refused by name."""

from __future__ import annotations

from model_server.loading.saving.exporting import ExportedMethod
from model_server.services.export_request import exported_methods
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.proto.modelet_pb2 import ExportRequest
from tests.model_server.refusals import refusal


def test_the_only_method_has_saxmls_usual_signature() -> None:
    request = ExportRequest(method_names=["lm.score"])
    assert exported_methods(request) == (ExportedMethod("lm.score", "serving_default"),)


def test_several_methods_have_signatures_of_their_own() -> None:
    request = ExportRequest(
        method_names=["lm.score", "lm.score"],
        signatures=["a", "b"],
        serialized_model_format=ExportRequest.JAX_EXPORT,
    )
    assert [method.signature for method in exported_methods(request)] == ["a", "b"]


def test_names_that_make_no_files_are_refused() -> None:
    for names, signatures in (
        ([], []),
        (["lm.score", "lm.score"], []),
        (["lm.score"], ["a", "b"]),
        (["lm.score", "lm.score"], ["a", "a"]),
        (["lm.score"], ["../a"]),
        (["lm.score"], [".hidden"]),
        (["lm.score"], ["a" * 65]),
    ):
        request = ExportRequest(method_names=names, signatures=signatures)
        assert refusal(exported_methods, request).kind is InvalidRequest, (names, signatures)


def test_what_is_not_written_is_refused_by_its_field() -> None:
    fields = {field.name for field in ExportRequest.DESCRIPTOR.fields}
    for request, words in (
        (ExportRequest(serialized_model_format=ExportRequest.TF_SAVEDMODEL_V0), "SavedModel"),
        (ExportRequest(rng_seed_mode=ExportRequest.STATELESS), "no random numbers"),
        (ExportRequest(enable_gpu_multi_device_execution=True), "one device"),
    ):
        told = refusal(exported_methods, request)
        assert (told.kind, words in told.text) == (UnsupportedParameter, True), told
        assert told.param in fields, told
