"""Saves and exports loaded models below --checkpoint_roots: a caller may not write elsewhere.

A server never changes weights, so what is saved is the checkpoint that a model was loaded from,
read again and written in our own format: every number stays as it was.

An export is a program of `jax.export` with the weights beside it: a whole forward pass over token
ids, without cache, sampler or tokenizer. It runs on CPUs, GPUs and TPUs in any process that has
jax and reads safetensors; nothing of ours is needed. The weights are arguments, since a program
that holds them would have to fit in one message.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without_prefixes
from model_server.checkpoints.hub.fetching import local_copy
from model_server.checkpoints.huggingface.safetensors_writer import write_safetensors
from model_server.checkpoints.media_part import text_alone
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.region import whole
from model_server.checkpoints.roots import CheckpointRoots
from model_server.checkpoints.writing import (
    HUGGINGFACE,
    check_absent,
    quiet,
    write_checkpoint,
    write_then_rename,
)
from model_server.kernels.row_sums import portable
from model_server.loading.weights import mismatches
from model_server.models.full_config import with_full_config
from model_server.models.layers.whole_decoder import embedded, hidden_of
from model_server.models.recipe import ModelClass, Recipe
from model_server.models.registry import find, make_recipe
from model_server.models.weights.sharding import ONE_DEVICE
from model_server.models.weights.weight import Blueprint, Declaration, WeightForm, blueprint
from sax.distribution import how_to_install
from sax.errors import CheckpointError, InvalidRequest, UnsupportedParameter
from sax.names import NO_CHECKPOINT
from sax.types import ModelSpec

METADATA = "export.json"
_PLATFORMS = ("cpu", "cuda", "tpu")
SCORE = "lm.score"


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
            if recipe.bidirectional_prompt is not None:
                raise UnsupportedParameter(
                    f"{spec.model_id} is not exported: the tokens of its prompts see each other, "
                    "those of its answers do not, and one program of logits cannot tell them apart"
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


@dataclass(frozen=True, slots=True)
class ExportedMethod:
    """A method to export, and the name of its program."""

    name: str
    signature: str


def export_model(
    model_id: str,
    recipe: Recipe,
    checkpoint: Checkpoint,
    place: Path,
    methods: Sequence[ExportedMethod],
) -> None:
    """Write a program per method, the weights and export.json.

    Raises CheckpointError, and UnsupportedParameter for what cannot be exported here.
    """
    _check_library()
    _check_methods(methods)
    module = _plain(recipe)
    needed = without_prefixes(text_alone(checkpoint), recipe.unused)
    if found := next(mismatches(module.declarations, needed), None):
        raise CheckpointError(found)
    weights = _Weights.of(module, needed)
    program = _program(module, recipe.max_context)

    def write(folder: Path) -> None:
        folder.mkdir()
        for method in methods:
            (folder / f"{method.signature}.jax_export").write_bytes(program)
        dtypes = {name: weights.dtype(name) for name in weights.declared}
        write_safetensors(weights, folder, dtypes, quiet)
        text = json.dumps(_metadata(model_id, recipe, weights, methods), indent=2)
        (folder / METADATA).write_text(text + "\n", encoding="utf-8")

    write_then_rename(place, write)


def _check_library() -> None:
    """Raise UnsupportedParameter without the library that jax packs programs with."""
    if importlib.util.find_spec("flatbuffers") is None:
        raise UnsupportedParameter(
            "this model server cannot export: jax.export needs the package flatbuffers, which is "
            f"not installed here: {how_to_install('export')}"
        )


def _check_methods(methods: Sequence[ExportedMethod]) -> None:
    """Raise UnsupportedParameter for a method that is no single program."""
    for method in methods:
        if method.name != SCORE:
            raise UnsupportedParameter(
                f"{method.name} is not exported: it is a loop over a cache, with a sampler and a "
                f"tokenizer, and no one program. Export {SCORE}, whose program gives the logits "
                "after every token",
                param="method_names",
            )


def _plain(recipe: Recipe) -> Blueprint:
    """Return the model on one device, unquantised: what any other program can run."""
    plain = replace(recipe, stages=1, stage=None, adapters=None, draft=None)
    form = WeightForm(dtype=jnp.dtype(plain.dtype), layout=ONE_DEVICE)
    return blueprint(lambda: plain.build(form))


def _program(module: Blueprint, context: int) -> bytes:
    """Return the serialised program of a prompt of up to `context` tokens."""

    def logits(leaves: list[jax.Array], ids: jax.Array, lengths: jax.Array) -> jax.Array:
        model: Any = module.assemble(leaves)
        hidden = hidden_of(model, embedded(model, ids), lengths)
        return model.logits(hidden.reshape(-1, hidden.shape[-1])).reshape(*ids.shape, -1)

    leaves = [
        jax.ShapeDtypeStruct(each.leaves[0].shape, each.leaves[0].dtype)
        for each in module.declarations
    ]
    ids, lengths = ((1, context), jnp.int32), ((1,), jnp.int32)
    inputs = (leaves, jax.ShapeDtypeStruct(*ids), jax.ShapeDtypeStruct(*lengths))
    with portable():
        exported = jax.export.export(jax.jit(logits), platforms=_PLATFORMS)(*inputs)
    return bytes(exported.serialize())


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights as the program takes them, read one at a time."""

    declared: Mapping[str, Declaration]  # by path in the module, in the program's order
    checkpoint: Checkpoint

    @classmethod
    def of(cls, module: Blueprint, checkpoint: Checkpoint) -> _Weights:
        declared = {each.path: each for each in module.declarations}
        wanted = {name for each in declared.values() for name in each.source.names}
        return cls(declared, with_whole_names(checkpoint, wanted))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.declared[name].shape

    def dtype(self, name: str) -> str:
        return str(jnp.dtype(self.declared[name].leaves[0].dtype))

    def read(self, name: str) -> np.ndarray:
        each = self.declared[name]
        return each.source.read(self.checkpoint, whole(each.shape), each.leaves[0].dtype)


def _metadata(
    model_id: str, recipe: Recipe, weights: _Weights, methods: Sequence[ExportedMethod]
) -> dict[str, Any]:
    context = recipe.max_context
    return {
        "format": "jax.export",
        "model": model_id,
        "jax": jax.__version__,
        "platforms": list(_PLATFORMS),
        "signatures": {
            method.signature: {
                "method": method.name,
                "file": f"{method.signature}.jax_export",
                "inputs": [
                    "weights: a list of arrays, in the order below, from the safetensors files",
                    f"ids: int32[1, {context}], padded at the end",
                    "lengths: int32[1], tokens of ids that are no padding",
                ],
                "outputs": [f"logits: float32[1, {context}, {recipe.vocab}], after each token"],
            }
            for method in methods
        },
        "weights": [
            {"name": name, "shape": list(weights.shape(name)), "dtype": weights.dtype(name)}
            for name in weights.declared
        ],
    }
