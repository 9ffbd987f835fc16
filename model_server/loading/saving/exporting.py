"""Exports a language model as programs of `jax.export` with its weights beside them.

A program is a whole forward pass over token ids: no cache, no sampler, no tokenizer. It runs on
CPUs, GPUs and TPUs in any process that has jax and reads safetensors; nothing of ours is needed.
The weights are arguments, since a program that holds them would have to fit in one message.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import with_whole_names, without_prefixes
from model_server.checkpoints.huggingface.safetensors_writer import write_safetensors
from model_server.checkpoints.media_part import text_alone
from model_server.checkpoints.region import whole
from model_server.checkpoints.writing import quiet, write_then_rename
from model_server.kernels.row_sums import portable
from model_server.loading.weights import mismatches
from model_server.models.layers.whole_decoder import embedded, hidden_of
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import ONE_DEVICE
from model_server.models.weights.weight import Blueprint, Declaration, WeightForm, blueprint
from sax.distribution import how_to_install
from sax.errors import CheckpointError, UnsupportedParameter

METADATA = "export.json"
_PLATFORMS = ("cpu", "cuda", "tpu")
SCORE = "lm.score"


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
