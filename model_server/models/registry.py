"""Every model path this server knows, and the recipe behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models import llama, lm_cloud
from model_server.models.overrides import apply_overrides
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from sax.names import nearest

_SAXML_ROOT = "saxml.server."
# model_type of a config.json -> the family that computes it
_FAMILIES = {"llama": llama.configure}


def _by_checkpoint(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    assert config is not None, "the registry says that auto needs a checkpoint"
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise CheckpointError(
            f"no family here computes model_type {family!r}; there are: {', '.join(_FAMILIES)}"
        )
    return _FAMILIES[family](config, values)


def _all_classes() -> dict[str, ModelClass]:
    classes = [
        ModelClass("auto", True, SERVING_DEFAULTS, _by_checkpoint),
        ModelClass("llama", True, SERVING_DEFAULTS, llama.configure),
        *lm_cloud.model_classes(),
    ]
    return {entry.path: entry for entry in classes}


_CLASSES = _all_classes()


def model_paths() -> tuple[str, ...]:
    """What a publish may name; Saxml's paths also without their `saxml.server.`."""
    return tuple(_CLASSES)


def find(path: str) -> ModelClass:
    """The class of a model path. Raises ModelPathNotFound with the nearest known ones."""
    found = _CLASSES.get(path) or _CLASSES.get(_SAXML_ROOT + path)
    if found is None:
        close = nearest(path, _CLASSES) or list(_CLASSES)
        raise ModelPathNotFound(
            f"no model path {path!r} on this server; nearest: {', '.join(close)}",
            param="model_path",
        )
    return found


def make_recipe(
    path: str, config: Mapping[str, Any] | None, overrides: Mapping[str, str]
) -> Recipe:
    """Configure the model of a path. `config` is None for checkpoint "None"."""
    found = find(path)
    if config is None and found.needs_checkpoint:
        raise InvalidRequest(
            f'{path} takes its sizes from a checkpoint; "None" works for the saxml test models',
            param="checkpoint",
        )
    return found.configure(config, apply_overrides(found.overridable, overrides))
