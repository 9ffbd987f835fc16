"""Checks a request of Modelet.Export: what it asks for that is not written is refused by name."""

from __future__ import annotations

import re
from typing import Any

from model_server.loading.saving.exporting import ExportedMethod
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted
from sax.proto import modelet_pb2

Request = modelet_pb2.ExportRequest
_DEFAULT = "serving_default"  # signature of the only method
_SIGNATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_FORMATS = (Request.SERIALIZED_MODEL_FORMAT_UNKNOWN, Request.JAX_EXPORT)


def exported_methods(request: Any) -> tuple[ExportedMethod, ...]:
    """Return the methods with their signatures. Raises InvalidRequest, UnsupportedParameter."""
    _check_switches(request)
    names, signatures = list(request.method_names), list(request.signatures)
    if not names:
        raise InvalidRequest("name the methods to export, e.g. lm.score", param="method_names")
    if not signatures and len(names) == 1:
        signatures = [_DEFAULT]
    if len(signatures) != len(names) or len(set(signatures)) != len(names):
        raise InvalidRequest(
            f"{len(names)} methods need as many different signatures, not {len(signatures)}",
            param="signatures",
        )
    for signature in signatures:
        if not _SIGNATURE.fullmatch(signature):
            raise InvalidRequest(
                f"signature {quoted(signature)} becomes a file's name: give up to 64 letters, "
                "digits, dots and dashes",
                param="signatures",
            )
    return tuple(map(ExportedMethod, names, signatures))


def _check_switches(request: Any) -> None:
    if request.serialized_model_format not in _FORMATS:
        raise UnsupportedParameter(
            "no TensorFlow SavedModel is written: leave serialized_model_format out, or give "
            "JAX_EXPORT (100), for programs of jax.export with the weights beside them",
            param="serialized_model_format",
        )
    if request.rng_seed_mode != Request.RNG_SEED_MODE_UNSPECIFIED:
        raise UnsupportedParameter(
            "an exported program draws no random numbers, so there is no seed: leave "
            "rng_seed_mode out",
            param="rng_seed_mode",
        )
    if request.enable_gpu_multi_device_execution:
        raise UnsupportedParameter(
            "an exported program runs on one device: leave enable_gpu_multi_device_execution out",
            param="enable_gpu_multi_device_execution",
        )
