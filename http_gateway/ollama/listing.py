"""Published models as Ollama lists and shows them."""

from __future__ import annotations

from collections.abc import Sequence

from http_gateway.ollama.names import tagged
from http_gateway.ollama.reply_types import OllamaDetails, OllamaModel, OllamaModelInfo
from sax.types import ModelSpec, PublishedModel

# The cell does not record when a model was published.
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"
_NEVER = "9999-12-31T23:59:59Z"  # a model stays loaded until it is unpublished


def listed(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    return [
        {
            "name": name,
            "model": name,
            "modified_at": _UNKNOWN_TIME,
            "size": 0,  # nor its size
            "digest": model.spec.version,
            "details": _details(model.spec),
        }
        for name, model in zip(tagged(models), models, strict=True)
    ]


def running(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    """Return those with a ready replica."""
    return [
        {**entry, "expires_at": _NEVER, "size_vram": 0}
        for entry, model in zip(listed(models), models, strict=True)
        if model.ready_replicas
    ]


def shown(
    model: PublishedModel, context: int | None, capabilities: Sequence[str]
) -> OllamaModelInfo:
    """context: tokens of prompt and answer at most; None: not known."""
    spec = model.spec
    info: dict[str, object] = {"general.architecture": spec.model_path}
    if context is not None:
        info[f"{spec.model_path}.context_length"] = context
    return {
        "modelfile": f"FROM {spec.checkpoint}",
        "parameters": "",
        "template": "",  # the model server has it
        "details": _details(spec),
        "model_info": info,
        "capabilities": [*capabilities],
        "modified_at": _UNKNOWN_TIME,
    }


def _details(spec: ModelSpec) -> OllamaDetails:
    return {
        "parent_model": "",
        "format": "gguf" if spec.checkpoint.endswith(".gguf") else "",
        "family": spec.model_path,
        "families": [spec.model_path],
        "parameter_size": "",
        "quantization_level": "",
    }
