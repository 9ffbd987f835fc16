"""Registry of every model path this server accepts.

A family is a module below `families` with a FAMILY, which is imported when one of its models is
made; user modules add models with `register`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from model_server.checkpoints.orbax.pax.dialect import SAXML_SIZES
from model_server.models import families as family_modules
from model_server.models.audio.audio_recipe import AudioClass, serving_of
from model_server.models.audio.synthesizer_recipe import VITS, SynthesizerClass, check_synthesizer
from model_server.models.audio.whisper import WHISPER
from model_server.models.custom import CustomModel
from model_server.models.layers.embedder import EmbedderClass, EmbedderFamily, EmbedRecipe
from model_server.models.media.media_overrides import rows_in_memory, wanted_config
from model_server.models.overrides import apply_overrides
from model_server.models.recipe import AUTO, SERVING_DEFAULTS, Family, ModelClass, Recipe, serving
from model_server.models.saxml import lm_cloud, mlperf, saxml_gemma, saxml_llama
from model_server.models.transformers import transformers as traced
from model_server.models.vision.resnet import IMAGENET_RESNET_50, RESNET
from model_server.models.vision.vision_recipe import VisionClass, serving_values
from sax.adapters import ADAPTER_PATH, BASE, parse_base
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from sax.format import quoted
from sax.names import check_model_path, nearest

_Recipes = ModelClass | EmbedderClass


@dataclass(frozen=True, slots=True)
class AdapterClass:
    """LoRA adapters, which are served by the model that BASE names."""

    path: str
    overridable: Mapping[str, Any]
    needs_checkpoint: bool = True


Entry = _Recipes | CustomModel | AdapterClass | VisionClass | AudioClass | SynthesizerClass

_SAXML_ROOT = "saxml.server."

_VISION = (RESNET, IMAGENET_RESNET_50)
_AUDIO = (WHISPER,)
_SYNTHESIZERS = (VITS,)
_SAXML = (lm_cloud, saxml_llama, saxml_gemma, mlperf)


def families() -> tuple[Family | EmbedderFamily, ...]:
    """Every family that reads a checkpoint, in the order of the docs table."""
    return _FAMILIES


_FAMILIES = family_modules.declared_families(family_modules)


def model_paths() -> tuple[str, ...]:
    """Every path a publish may name; the `saxml.server.` prefix is optional."""
    return tuple(_ENTRIES)


def register(entry: Entry) -> None:
    """Add your own model. Raises InvalidName, and ValueError if the path is taken."""
    if not isinstance(entry, _Recipes | CustomModel):
        raise TypeError(
            f"register takes a ModelClass, an EmbedderClass or a CustomModel, not a "
            f"{type(entry).__name__}"
        )
    check_model_path(entry.path)
    taken = _lookup(entry.path)
    if taken is not None:
        raise ValueError(
            f"model path {entry.path!r} is already registered (as a {type(taken).__name__}): give "
            "the new one another path"
        )
    _ENTRIES[entry.path] = entry


def find(path: str) -> Entry:
    """Look up a model path. Raises ModelPathNotFound with the nearest known ones."""
    found = _lookup(path)
    if found is None:
        close = nearest(path, _ENTRIES)
        hint = f"nearest: {', '.join(close)}" if close else f"known: {_overview()}"
        raise ModelPathNotFound(
            f"no model path {quoted(path)} on this server; {hint}", param="model_path"
        )
    return found


def make_recipe(
    path: str, config: Mapping[str, Any] | None, overrides: Mapping[str, str]
) -> Recipe | EmbedRecipe:
    """Build the recipe for a path. `config` is None for checkpoint "None"."""
    found = find(path)
    assert not isinstance(found, CustomModel | AdapterClass), "it has no recipe"
    others = (
        (vision_class(path, config), "images"),
        (audio_class(path, config), "sounds"),
        (synthesizer_class(path, config), "speech"),
    )
    for other, kind in others:
        if other is not None:
            raise InvalidRequest(
                f"{other.path} is a model of {kind}: it can be published, and no more; what was "
                "asked is for models of text"
            )
    assert not isinstance(found, VisionClass | AudioClass | SynthesizerClass)
    if config is None and found.needs_checkpoint:
        raise InvalidRequest(
            f'{path} takes its sizes from a checkpoint; "None" (random weights) works for the '
            "classes of saxml.server.pax.lm.params, which have their own sizes",
            param="checkpoint",
        )
    if config is not None:
        found = _of_checkpoint(found, config)
    values = apply_overrides(found.overridable, overrides, found.path)
    config = wanted_config(config, values)
    if isinstance(found, EmbedderClass):
        return found.configure(config, values)
    recipe, asked = found.configure(config, without_auto(values)), values.get("MAX_CONTEXT")
    recipe = replace(recipe, media_rows=rows_in_memory(recipe.media, values))
    return recipe if asked is None else replace(recipe, auto_context=asked == AUTO)


def vision_class(path: str, config: Mapping[str, Any] | None) -> VisionClass | None:
    """Return the model of images that a path and a checkpoint mean; None: it is another kind.

    Raises ModelPathNotFound, and CheckpointError for a checkpoint of another kind.
    """
    entry, model_type = find(path), None if config is None else config.get("model_type")
    if entry.path == AUTO:
        known = (each for each in _VISION if each.found_by_type)
        return next((each for each in known if model_type in each.model_types), None)
    if not isinstance(entry, VisionClass):
        return None
    if config is not None and model_type not in entry.model_types:
        raise CheckpointError(_other_type(entry, model_type))
    return entry


def audio_class(path: str, config: Mapping[str, Any] | None) -> AudioClass | None:
    """Return the model of sounds that a path and a checkpoint mean; None: it is another kind.

    Raises ModelPathNotFound, and CheckpointError for a checkpoint of another kind.
    """
    return _class_of(AudioClass, _AUDIO, path, config)


def synthesizer_class(path: str, config: Mapping[str, Any] | None) -> SynthesizerClass | None:
    """Return the model that speaks that a path and a checkpoint mean. As `audio_class`."""
    return _class_of(SynthesizerClass, _SYNTHESIZERS, path, config)


_Sounding = TypeVar("_Sounding", AudioClass, SynthesizerClass)


def _class_of(
    kind: type[_Sounding],
    known: tuple[_Sounding, ...],
    path: str,
    config: Mapping[str, Any] | None,
) -> _Sounding | None:
    entry, model_type = find(path), None if config is None else config.get("model_type")
    if entry.path == AUTO:
        return next((each for each in known if model_type in each.model_types), None)
    if not isinstance(entry, kind):
        return None
    if config is not None and model_type not in entry.model_types:
        raise CheckpointError(_other_type(entry, model_type))
    return entry


def _other_type(entry: VisionClass | AudioClass | SynthesizerClass, model_type: object) -> str:
    return (
        f"{entry.path} loads checkpoints of model_type {', '.join(entry.model_types)}, not "
        f"{quoted(model_type)}"
    )


def full_config(
    path: str, config: Mapping[str, Any], overrides: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the config.json of a Pax checkpoint as this class of Saxml's serves it.

    Raises ModelPathNotFound, InvalidRequest, and CheckpointError if its sizes are not the class's.
    """
    found = find(path)
    if not isinstance(found, ModelClass) or found.config_of is None:
        raise InvalidRequest(
            f"{path} has no sizes of its own: name a class of {_SAXML_ROOT}*", param="model_path"
        )
    return found.config_of(config, apply_overrides(found.overridable, overrides, found.path))


def fitting_classes(config: Mapping[str, Any]) -> list[str]:
    """Return the model paths of the classes that have a Pax checkpoint's sizes."""
    return [path for path in _ENTRIES if _fits(path, config)]


def _fits(path: str, config: Mapping[str, Any]) -> bool:
    try:
        full_config(path, config, {})
    except (CheckpointError, InvalidRequest):
        return False
    return True


def check_overrides(path: str, overrides: Mapping[str, str]) -> None:
    """Check what needs no checkpoint.

    Raises InvalidRequest naming the override with which no load of the path can succeed, and
    ModelPathNotFound.
    """
    entry = find(path)
    defaults = entry.overridable
    if entry.path == AUTO:  # the checkpoint decides which of these it takes
        every = (
            *(*_VISION, *_AUDIO, *_SYNTHESIZERS),
            *(each.model_class() for each in families()),
        )
        defaults = {key: value for each in every for key, value in each.overridable.items()}
    values = apply_overrides(defaults, overrides, entry.path)
    if isinstance(entry, AdapterClass):
        parse_base(overrides)
    elif isinstance(entry, VisionClass):
        serving_values(values)
    elif isinstance(entry, AudioClass):
        serving_of(values)
    elif isinstance(entry, SynthesizerClass):
        check_synthesizer(values)
    elif isinstance(entry, ModelClass) and not entry.needs_checkpoint:
        make_recipe(path, None, overrides)  # its sizes are its own
    elif values.keys() >= SERVING_DEFAULTS.keys():
        serving(without_auto(values), sys.maxsize)


def _lookup(path: str) -> Entry | None:
    return _ENTRIES.get(path) or _ENTRIES.get(_SAXML_ROOT + path)


def _overview() -> str:
    classes = sum(path.startswith(_SAXML_ROOT) for path in _ENTRIES)
    return (
        f"{AUTO}, the {len(_FAMILIES)} families "
        "of docs/reference/models.md such as llama and qwen3, and "
        f"{classes} classes of {_SAXML_ROOT}*"
    )


def _of_checkpoint(found: _Recipes, config: Mapping[str, Any]) -> _Recipes:
    """Resolve `auto` by the checkpoint; otherwise check that the named family matches it."""
    kept = next((each for each in families() if config.get("model_type") in each.model_types), None)
    if SAXML_SIZES in config and getattr(found, "config_of", None) is None:
        raise CheckpointError(
            "this Pax checkpoint says its sizes and nothing else, such as how positions are "
            f"rotated: publish it as its class in {_SAXML_ROOT}*, or put a config.json beside it"
        )
    if found.path == AUTO:
        return _of_type(kept, config)
    if kept and kept.path != found.path and found.path in {each.path for each in families()}:
        raise CheckpointError(
            f"this is a {kept.path} checkpoint (config.json: model_type "
            f"{config['model_type']!r}), not a {found.path} one: publish it as {AUTO} or "
            f"{kept.path}"
        )
    refuse_lookalike(config.get("model_type"), found.path)
    if kept is None:
        _check_reads_others(found.path, config)
    return found


def _check_reads_others(path: str, config: Mapping[str, Any]) -> None:
    """Raise CheckpointError for a family that reads only its own model types."""
    family = next((each for each in families() if each.path == path), None)
    if isinstance(family, Family) and family.own_types_only:
        raise CheckpointError(
            f"config.json has model_type {quoted(config.get('model_type'))}; the {path} family "
            f"reads only {', '.join(family.model_types)}, because neither keys nor tensors tell it "
            "apart from others: serve a model of a supported family"
        )


def _of_type(kept: Family | EmbedderFamily | None, config: Mapping[str, Any]) -> _Recipes:
    """Return the class of a checkpoint's own family, or of transformers' code if it has none."""
    if kept is not None:
        return kept.model_class()
    name = config.get("model_type")
    if name in traced.COMPARED and traced.is_installed():
        return traced.TRANSFORMERS
    every = (*families(), *_VISION, *_AUDIO, *_SYNTHESIZERS)
    there = sorted({name for each in every for name in each.model_types})
    raise CheckpointError(
        f"model_type {quoted(name)} is not supported; supported: {', '.join(there)}; for most of "
        f"the others that transformers has: {traced.remedy(name)}"
    )


def _configure_auto(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    raise AssertionError("make_recipe uses the checkpoint's own family")


def _own_entries() -> dict[str, Entry]:
    entries: list[Entry] = [
        ModelClass(AUTO, True, SERVING_DEFAULTS, _configure_auto),
        traced.TRANSFORMERS,
        *(family.model_class() for family in families()),
        AdapterClass(ADAPTER_PATH, {BASE: ""}),
        *(entry for module in _SAXML for entry in module.model_classes()),
        *_VISION,
        *_AUDIO,
        *_SYNTHESIZERS,
    ]
    return {entry.path: entry for entry in entries}


# Mutable: `register` adds the models of imported modules.
_ENTRIES = _own_entries()

# Model types whose config.json and tensors fit a family that computes something else.
#
# Neither keys nor names give them away, so they are refused by name. A test runs every model type
# of transformers through every family that takes its config.json; what it finds wrong belongs
# here.

_SHIFTED = "its positions start after the padding token's id"
# model_type -> what it computes in another way
_LOOKALIKES: Mapping[str, str] = {
    "camembert": _SHIFTED,
    "data2vec-text": _SHIFTED,
}


def refuse_lookalike(model_type: object, family: str) -> None:
    """Raise CheckpointError for a type that no family computes although some would take it."""
    reason = _LOOKALIKES.get(model_type) if isinstance(model_type, str) else None
    if reason is not None:
        raise CheckpointError(
            f"config.json has model_type {model_type!r}, which looks like the {family} family but "
            f"is not computed like it ({reason}): serve a model of a supported family"
        )


def without_auto(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with the model's own context in place of MAX_CONTEXT "auto".

    The memory plan shortens it later; a family computes with the longest that there may be.
    Raises InvalidRequest for another word.
    """
    if isinstance(asked := values.get("MAX_CONTEXT"), str) and asked != AUTO:
        raise InvalidRequest(
            f'MAX_CONTEXT is {asked!r}; give a number of tokens, "{AUTO}" or null',
            param="overrides.MAX_CONTEXT",
        )
    return {**values, "MAX_CONTEXT": None} if values.get("MAX_CONTEXT") == AUTO else values
