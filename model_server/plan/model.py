"""Resolve the model of a plan: registered path, checkpoint, config.json or well-known name.

Reads headers and configurations, never weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.hub.huggingface import ModelHub
from model_server.checkpoints.huggingface.rope_settings import settle_rope
from model_server.checkpoints.huggingface.safetensors_tensors import WEIGHT_FILES
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.loading.chosen_tasks import generates
from model_server.loading.draft_loading import drafted, named, own_path, with_own_head
from model_server.models.custom import CustomModel
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe, model_paths
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
from sax.names import nearest
from sax.references import HubReference, parse_reference

AUTO = "auto"  # the registry's path for "as config.json says"
_CONFIGS = Path(__file__).with_name("configs")
_BEFORE = "meta-"
_BEHIND = ("-instruct", "-it", "-chat", "-hf", "-pt", "-base", "-v0.1")


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """Input for the registry."""

    title: str
    path: str
    config: Mapping[str, Any] | None  # None: the path defines the sizes
    checkpoint: Checkpoint | None = None  # open during planning
    draft: PlannedModel | None = None  # that drafts its tokens

    def recipe(self, overrides: Mapping[str, str]) -> Recipe:
        """Configure the recipe as a load does. Raises InvalidRequest, CheckpointError."""
        made = self.without_draft(overrides)
        if made.speculation.own:
            return with_own_head(made, self.checkpoint)
        if made.speculation.draft is None:
            return made
        assert self.draft is not None, "open_with_draft opens it"
        return drafted(made, overrides, self.draft.config, self.draft.checkpoint)

    def without_draft(self, overrides: Mapping[str, str]) -> Recipe:
        """Configure the recipe of this model alone. Raises InvalidRequest, CheckpointError."""
        entry = find(self.path)
        if isinstance(entry, CustomModel):
            raise _unplannable(
                f"{self.path} is a custom model: only language models can be planned"
            )
        if self.config is None and entry.needs_checkpoint:
            raise _unplannable(
                f"{self.path} takes its sizes from a checkpoint: name one, a config.json, or a "
                "well-known model such as meta-llama/Llama-3-70B"
            )
        recipe = make_recipe(self.path, self.config, overrides)
        if not isinstance(recipe, Recipe):
            raise _unplannable(
                f"{self.title} is an embedding model: only language models can be planned"
            )
        if recipe.stages > 1:
            raise _unplannable(
                f"NUM_STAGES is {recipe.stages}: a plan covers one mesh; leave it out, or plan the "
                "layers of one stage with NUM_LAYERS",
                "overrides.NUM_STAGES",
            )
        if not generates(recipe, self.checkpoint):
            raise _unplannable(
                f"{self.title} makes no tokens: only language models that generate can be planned"
            )
        return recipe


@contextmanager
def open_model(text: str, path: str | None = None) -> Iterator[PlannedModel]:
    """Open the model that the text names.

    path: the model path of its checkpoint, if not as in config.json. Raises InvalidRequest,
    ModelPathNotFound, CheckpointError.
    """
    if path is not None:
        find(path)
    elif registered := _registered(text):
        yield PlannedModel(text, registered, None)
        return
    wanted = path or AUTO
    if file := known_models().get(_key(text)):
        yield PlannedModel(_title(file), wanted, _read(file))
    elif config := _config_alone(Path(text).expanduser()):
        yield PlannedModel(text, wanted, text_config(_read(config)))
    elif reference := parse_reference(text):
        with _open_fetched(reference, wanted) as fetched:
            yield fetched
    elif "://" in text or Path(text).expanduser().exists():
        with closing(open_checkpoint(text)) as checkpoint:
            yield PlannedModel(text, wanted, checkpoint.config, checkpoint)
    else:
        raise _unknown(text)


@contextmanager
def _open_fetched(reference: HubReference, wanted: str) -> Iterator[PlannedModel]:
    """Open config.json of a hub's repository alone, or fetch what has none."""
    title = str(reference)
    config = ModelHub().fetch_config(reference)
    if config is not None:
        yield PlannedModel(title, wanted, text_config(_read(config)))
        return
    with closing(open_checkpoint(local_copy(title))) as checkpoint:
        yield PlannedModel(title, wanted, checkpoint.config, checkpoint)


@contextmanager
def open_with_draft(
    text: str, overrides: Mapping[str, str], path: str | None = None
) -> Iterator[PlannedModel]:
    """Open the model that the text names, and the draft model that the overrides name.

    Raises InvalidRequest, ModelPathNotFound, CheckpointError.
    """
    with open_model(text, path) as model:
        wanted = model.without_draft(overrides).speculation.draft
        if wanted is None:
            yield model
        elif own := own_path(wanted):
            yield replace(model, draft=PlannedModel(wanted, own, None))
        else:
            with ExitStack() as held:
                with _naming_draft(wanted):
                    draft = held.enter_context(open_model(wanted, AUTO))
                yield replace(model, draft=draft)


@contextmanager
def _naming_draft(wanted: str) -> Iterator[None]:
    """Say of an error that it is about DRAFT_MODEL."""
    try:
        with named(wanted):
            yield
    except InvalidRequest as exc:
        raise _unplannable(f"DRAFT_MODEL: {exc.text}", "overrides.DRAFT_MODEL") from exc


def known_models() -> dict[str, Path]:
    """Return the config.json of every well-known model, by normalised name."""
    return {_key(_title(file)): file for file in sorted(_CONFIGS.glob("*.json"))}


def known_names() -> list[str]:
    return [_title(file) for file in known_models().values()]


def _title(file: Path) -> str:
    return file.stem.replace("--", "/")


def _key(name: str) -> str:
    """Normalise: the same for meta-llama/Meta-Llama-3-70B-Instruct and Llama-3-70B."""
    word = name.rpartition("/")[2].lower().removeprefix(_BEFORE)
    while end := next((end for end in _BEHIND if word.endswith(end)), None):
        word = word.removesuffix(end)
    return word


def _registered(text: str) -> str | None:
    """Return the full path of a registered model; Saxml classes also match by their last words."""
    try:
        return find(text).path
    except ModelPathNotFound:
        ends = [path for path in model_paths() if path.endswith(f".{text}")]
        return ends[0] if len(ends) == 1 else None


def _config_alone(place: Path) -> Path | None:
    """Return a config.json that has no weights beside it."""
    if place.suffix == ".json" and place.is_file():
        return place
    config = place / "config.json"
    if not config.is_file() or any((place / name).exists() for name in WEIGHT_FILES):
        return None
    others = [child for child in place.iterdir() if child.is_dir() or child.suffix == ".gguf"]
    return None if others else config


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as exc:
        raise CheckpointError(f"{file} cannot be read as JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} must hold an object, as a Hugging Face config.json does")
    settle_rope(config)
    return config


def _unplannable(text: str, param: str = "model") -> InvalidRequest:
    return InvalidRequest(text, param=param)


def _unknown(text: str) -> InvalidRequest:
    close = nearest(text, [*known_names(), *model_paths()])
    hint = f"nearest: {', '.join(close)}" if close else f"known are {', '.join(known_names())}"
    return InvalidRequest(
        f"{text!r} is not a model path, a checkpoint or config.json on this machine, or a "
        f"well-known model; {hint}",
        param="model",
    )
