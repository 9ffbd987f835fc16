"""saxutil's commands that make a model's server write it to a folder there: save and export."""

from __future__ import annotations

from sax.cli.saxutil.go_flags import switch, text_flag
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb
from sax.errors import InvalidRequest
from sax.names import ModelId
from sax.proto.modelet_pb2 import ExportRequest, SaveRequest
from sax.wire.services import EXPORT, SAVE

# Saxml's flags have values of its SavedModels; those mean that nothing was asked for.
_SEED, _SEVERAL_GPUS = "stateful", True
_SEEDS = {
    _SEED: ExportRequest.RNG_SEED_MODE_UNSPECIFIED,
    "stateless": ExportRequest.STATELESS,
    "fixed": ExportRequest.FIXED,
}


def save(call: SaxutilCall) -> None:
    """Write the model's checkpoint on the machine of one of its servers."""
    model_id, path = str(ModelId.parse(call.words[0])), call.words[1]
    request = SaveRequest(model_key=model_id, checkpoint_path=path)
    with call.client(model_id) as client:
        client.ask_service(model_id, SAVE, request, call.timeout_s)


def export(call: SaxutilCall) -> None:
    """Write programs of `jax.export` and the model's weights, likewise."""
    model_id, methods, path = str(ModelId.parse(call.words[0])), *call.words[1:]
    seed, signatures = call.flag("rng_seed_mode"), call.flag("signatures")
    if seed not in _SEEDS:
        raise InvalidRequest(
            f"-rng_seed_mode={seed}: write one of {', '.join(_SEEDS)}", param="rng_seed_mode"
        )
    request = ExportRequest(
        model_key=model_id,
        method_names=methods.split(","),
        signatures=signatures.split(",") if signatures else (),
        export_path=path,
        serialized_model_format=ExportRequest.JAX_EXPORT,
        rng_seed_mode=_SEEDS[seed],
    )
    with call.client(model_id) as client:
        client.ask_service(model_id, EXPORT, request, call.timeout_s)


_EXPORT_FLAGS = (
    text_flag("rng_seed_mode", "Seeds of a SavedModel; a program here has none.", _SEED),
    text_flag("signatures", "Signatures with commas between them, one a method."),
    switch("enable_gpu_multi_device_execution", "Has no meaning here.", default=_SEVERAL_GPUS),
)
VERBS = (
    SaxutilVerb(
        "export", "Export a model.", "[FLAGS] MODEL METHOD,... PATH", export, 3, 3, _EXPORT_FLAGS
    ),
    SaxutilVerb("save", "Save a model.", "MODEL PATH", save, 2, 2),
)
