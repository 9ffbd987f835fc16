"""The kinds of model: which of them takes a publish. A kind is imported when it is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.checkpoint_opener import CheckpointOpener
from model_server.loading.chosen_tasks import generates
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_model import LoadedModel, Report
from model_server.loading.served_recipe import recipe_of
from model_server.models.custom import CustomModel
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import (
    AdapterClass,
    Entry,
    audio_class,
    synthesizer_class,
    vision_class,
)
from sax.types import ModelSpec


class AskedModel:
    """A publish to load, and what its checkpoint says, which is opened once somebody looks."""

    def __init__(
        self,
        spec: ModelSpec,
        entry: Entry,
        opener: CheckpointOpener,
        opened: ExitStack,
        report: Report,
    ) -> None:
        """opened: closes what the load opens, once it is over."""
        self.spec, self.entry = spec, entry
        self.opened = opened
        self._opener = opener
        self._report = report

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """None: it has none. Raises CheckpointError."""
        return self.opened.enter_context(self._opener.opened(self.spec, self._report))

    @property
    def config(self) -> Mapping[str, Any] | None:
        """config.json, or what other formats say in its place."""
        return None if self.checkpoint is None else self.checkpoint.config

    @cached_property
    def recipe(self) -> Recipe | EmbedRecipe:
        """Recipe of a text model. Raises as `recipe_of`."""
        return recipe_of(self.spec, self.config)

    @property
    def generates(self) -> bool:
        """True of a model that makes tokens, unless it was published for something else."""
        return isinstance(self.recipe, Recipe) and generates(self.recipe, self.checkpoint)

    @property
    def pairs_images(self) -> bool:
        """True of a model with a space of texts and images."""
        return isinstance(self.recipe, EmbedRecipe) and self.recipe.pairs_images


class KindPlan(Protocol):
    """A model that is known to match its checkpoint and to fit here."""

    def build(self, report: Report) -> LoadedModel:
        """Read its weights; every program has run once when this returns. Raises as a load."""
        ...


class ModelKind(Protocol):
    """One kind of model: a module."""

    @staticmethod
    def plan(asked: AskedModel, context: LoadContext, report: Report) -> KindPlan:
        """Raises CheckpointError, InvalidRequest, MemoryPlanError, LoadFailed."""
        ...


class _KindPlace(NamedTuple):
    takes: Callable[[AskedModel], bool]
    module: str  # a `ModelKind`


# The first that takes a publish loads it; those that open no checkpoint come first.
_KINDS = (
    _KindPlace(lambda asked: isinstance(asked.entry, AdapterClass), "adapter"),
    _KindPlace(lambda asked: isinstance(asked.entry, CustomModel), "custom"),
    _KindPlace(
        lambda asked: vision_class(asked.spec.model_path, asked.config) is not None,
        "vision.vision_loading",
    ),
    _KindPlace(
        lambda asked: audio_class(asked.spec.model_path, asked.config) is not None,
        "audio.audio_loading",
    ),
    _KindPlace(
        lambda asked: synthesizer_class(asked.spec.model_path, asked.config) is not None,
        "audio.synthesizer_loading",
    ),
    _KindPlace(lambda asked: asked.generates, "language"),
    _KindPlace(lambda asked: asked.pairs_images, "passes.image_text_loading"),
    _KindPlace(lambda asked: True, "passes.embed_loading"),
)


def load_model(asked: AskedModel, context: LoadContext, report: Report) -> LoadedModel:
    """Load a model by the kind that takes it. Raises as its plan and its build do."""
    name = next(module for takes, module in _KINDS if takes(asked))
    kind = cast("ModelKind", import_module(f"model_server.loading.{name}"))
    return kind.plan(asked, context, report).build(report)
