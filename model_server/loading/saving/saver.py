"""Saves and exports loaded models below --checkpoint_roots: a caller may not write elsewhere.

A server never changes weights, so what is saved is the checkpoint that a model was loaded from,
read again and written in our own format: every number stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.roots import CheckpointRoots
from model_server.checkpoints.writing import HUGGINGFACE, check_absent, write_checkpoint
from model_server.loading.saving.exporting import ExportedMethod, export_model
from model_server.models.full_config import with_full_config
from model_server.models.recipe import ModelClass, Recipe
from model_server.models.registry import find, make_recipe
from sax.errors import CheckpointError, InvalidRequest, UnsupportedParameter
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec


class Saver:
    """Writes models to folders. Each call blocks until all is written; thread-safe."""

    def __init__(self, roots: Sequence[str]) -> None:
        """roots: of --checkpoint_roots; none: nothing is written anywhere."""
        self._roots = CheckpointRoots(roots)
        self._may_write = bool(roots)

    def save(self, spec: ModelSpec, destination: str) -> None:
        """Write the model's checkpoint as a Hugging Face folder.

        Raises InvalidRequest, UnsupportedParameter, and CheckpointError if the destination is not
        below a root, exists, or cannot be written.
        """
        place = self._place(destination, "checkpoint_path")
        with self._opened(spec) as checkpoint:
            whole = with_full_config(checkpoint, spec.model_path, spec.overrides)
            write_checkpoint(whole, place, HUGGINGFACE)

    def export(self, spec: ModelSpec, destination: str, methods: Sequence[ExportedMethod]) -> None:
        """Write programs of the model and its weights to a folder. Raises as `save` does."""
        place = self._place(destination, "export_path")
        with self._opened(spec) as checkpoint:
            recipe = make_recipe(spec.model_path, checkpoint.config, spec.overrides)
            if not isinstance(recipe, Recipe):
                raise UnsupportedParameter(
                    f"{spec.model_id} embeds texts; only language models are exported"
                )
            export_model(spec.model_id, recipe, checkpoint, place, methods)

    def _place(self, destination: str, param: str) -> Path:
        """Return where to write. Raises InvalidRequest or CheckpointError."""
        if not self._may_write:
            raise InvalidRequest(
                "this model server writes nothing: start it with --checkpoint_roots=FOLDER to let "
                "admins save and export models below it",
                param=param,
            )
        if "://" in destination or not destination.startswith("/"):
            raise InvalidRequest(
                f"{destination!r} is no absolute path on the model server's machine: models are "
                "written to local folders",
                param=param,
            )
        place = Path(destination)
        self._roots.check(destination)
        check_absent(place)
        return place

    @contextmanager
    def _opened(self, spec: ModelSpec) -> Iterator[Checkpoint]:
        if not isinstance(find(spec.model_path), ModelClass):
            raise UnsupportedParameter(
                f"{spec.model_id} is a {spec.model_path}: only language models are written"
            )
        if spec.checkpoint == NO_CHECKPOINT:
            raise UnsupportedParameter(
                f"{spec.model_id} has random weights, which are stored nowhere: publish it with "
                'the checkpoint "None" again, under this name, and it has the same'
            )
        self._roots.check(spec.checkpoint)
        try:
            opened = open_checkpoint(local_copy(spec.checkpoint))
        except CheckpointError as exc:
            raise CheckpointError(
                f"the checkpoint that {spec.model_id} was loaded from is read again: {exc.text}"
            ) from exc
        with closing(opened) as checkpoint:
            yield checkpoint
