"""Passes of a language model beside generating: it embeds, and differentiates its loss.

The programs are compiled before the memory plan, which counts what they need; they run over the
weights of the steps.

The loss is Saxml's: the mean cross-entropy of every token of prefix and suffix but the first. The
score is the log-probability of the suffix after the prefix.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.huggingface.sentence_transformers import (
    SentenceSettings,
    read_sentence_settings,
)
from model_server.engine.compiling import Programs
from model_server.engine.step_program import everywhere
from model_server.kernels.cpu.tiles import plain_weight
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.passes.embed_programs import EmbedPrograms, embedding_as
from model_server.loading.passes.loaded_passes import (
    WAIT_S,
    GradientInput,
    LoadedEmbedder,
    LoadedGradients,
)
from model_server.loading.passes.pass_programs import PassBatches, PassBucket, PassPrograms
from model_server.loading.passes.text_settings import encoding_as, with_tasks
from model_server.loading.placed_model import PlacedModel
from model_server.models.layers.whole_decoder import embedded, hidden_of
from model_server.models.tasks import EMBED, GRADIENT, sizes_of
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.sharding import spans_hosts
from model_server.models.weights.weight import Blueprint, leaf_shapes
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import InvalidRequest
from sax.passes import Gradients
from sax.types import Progress

_BATCH = 16  # most inputs per step
_TEXTS_AT_ONCE = 4  # most texts per step: a backward pass keeps what a forward pass forgets
_MOST_VALUES = 4 << 20  # of one answer: 32 MiB on the wire

Tensors = dict[str, jax.Array]
_INPUTS, _WEIGHTS = "gradients/inputs/", "gradients/mdl_vars/"  # as Saxml names them


def _quiet(_: Progress) -> None:
    """The caller has no report yet: it compiles before it plans."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Programs beside those of the steps; None: not published for that."""

    placed: PlacedModel
    settings: SentenceSettings
    context: int
    embed: EmbedPrograms | None
    gradient: GradientPrograms | None

    @property
    def parts(self) -> list[PassPrograms[Any, Any]]:
        return [each for each in (self.embed, self.gradient) if each is not None]

    @property
    def lowers(self) -> dict[str, Callable[[], jax.stages.Lowered]]:
        """Functions that trace each program, by name."""
        return {name: lower for each in self.parts for name, lower in each.lowers.items()}

    @property
    def workspace(self) -> int:
        """Bytes; both may run at once."""
        return sum(programs.workspace for programs in self.parts)

    def compile(self, programs: Programs, *, largest: bool = False) -> PlacedModel:
        """Compile all, or only the largest of each kind; return the model with the memory that they
        need.
        """
        for each in self.parts:
            each.compile(_quiet, programs, [each.largest] if largest else None)
        return replace(self.placed, beside=self.workspace)

    def embedder(
        self,
        leaves: Sequence[jax.Array],
        checkpoint: Checkpoint | None,
        tokenizer: HfTokenizer | ByteTokenizer,
        queue: int,
        report: Report,
    ) -> LoadedEmbedder | None:
        """Return the embedder over the weights of the steps, once each of its programs has run."""
        if self.embed is None:
            return None
        recipe = self.placed.recipe
        own = recipe.tasks.matryoshka
        config = checkpoint.config if checkpoint else {}
        runner = PassBatches(self.embed, leaves)
        runner.warm(report)
        return LoadedEmbedder(
            runner=runner,
            tokenizer=encoding_as(self.settings, tokenizer),
            vocab=recipe.vocab,
            max_context=self.context,
            dimensions=recipe.embed,
            sizes=sizes_of(config) if own is None else own,
            normalised=self.settings.normalise,
            batching={ONLY: Batching(_BATCH, WAIT_S, queue)},
            devices=self.placed.layout.mesh.size,
            memory=0,  # counted by the language model
        )

    def gradients(
        self, leaves: Sequence[jax.Array], queue: int, report: Report
    ) -> LoadedGradients | None:
        """Return the gradients by the weights of the steps, once each program has run."""
        if self.gradient is None:
            return None
        runner = PassBatches(self.gradient, leaves)
        runner.warm(report)
        return LoadedGradients(
            runner=runner,
            max_context=self.context,
            batching={ONLY: Batching(self.gradient.batch, WAIT_S, queue)},
            devices=self.placed.layout.mesh.size,
        )


def beside_of(
    placed: PlacedModel, checkpoint: Checkpoint | None, tasks: frozenset[str]
) -> Beside | None:
    """Return the programs of the tasks beside generating, not compiled yet; None if there are none.

    Raises InvalidRequest if the model spans hosts, and for tensors that cannot be differentiated
    by.
    """
    if not tasks & {EMBED, GRADIENT}:
        return None
    if spans_hosts(placed.layout):
        raise InvalidRequest(
            "TASKS beside generate run in one process, but this model spans several hosts or "
            "stages: publish it for them on one host, or leave TASKS out",
            param="overrides.TASKS",
        )
    recipe = placed.recipe
    folder = checkpoint.folder if checkpoint else None
    settings = with_tasks(read_sentence_settings(folder), checkpoint, recipe.tasks)
    if settings.late is not None:
        raise InvalidRequest(
            "this checkpoint has a vector per token, which is not computed beside generating: "
            'publish it with TASKS=["embed"]',
            param="overrides.TASKS",
        )
    if settings.dense:
        raise InvalidRequest(
            f"this checkpoint has dense layers over its vectors ({settings.dense[0].folder}), "
            'which are not computed beside generating: publish it with TASKS=["embed"]',
            param="overrides.TASKS",
        )
    context = min(recipe.tasks.pass_context, recipe.max_context)
    leaves = leaf_shapes(placed.blueprint, placed.layout)

    def hidden(decoder: object, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return hidden_of(decoder, embedded(decoder, tokens), lengths)  # pyright: ignore[reportArgumentType]

    embed = gradient = None
    if EMBED in tasks:
        encode = embedding_as(settings, "last", hidden)
        embed = EmbedPrograms(
            placed.blueprint,
            encode,
            context=context,
            batch=_BATCH,
            leaves=leaves,
        )
    if GRADIENT in tasks:
        gradient = GradientPrograms(
            placed.blueprint,
            leaves,
            inputs=recipe.tasks.gradient_inputs,
            weights=recipe.tasks.gradient_weights,
            context=context,
            embed=recipe.row,
        )
    return Beside(placed, settings, context, embed, gradient)


class GradientPrograms(PassPrograms[GradientInput, Gradients]):
    """The buckets of one module's gradients."""

    def __init__(
        self,
        module: Blueprint,
        leaves: Sequence[jax.ShapeDtypeStruct],
        *,
        inputs: Sequence[str],
        weights: Sequence[str],
        context: int,
        embed: int,
    ) -> None:
        """inputs, weights: names to differentiate by. Raises InvalidRequest for unknown ones."""
        # The gradients of weights would be of all texts together.
        super().__init__("gradients", context, 1 if weights else _TEXTS_AT_ONCE, self._lowered)
        self._module = module
        self._leaves = tuple(map(byte_shape, leaves))
        self.inputs = tuple(inputs)
        self.weights = _places(module, weights)
        tiled = (each for each in module.declarations if each.is_tiled and each.packing is None)
        self._tiled = {each.path: each.shape for each in tiled}
        _check_size(module, inputs, self.weights, context, embed)

    @staticmethod
    def ids(given: GradientInput) -> Sequence[int]:
        return given.ids

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[GradientInput], bucket: PassBucket
    ) -> list[Gradients]:
        rows, ids = bucket.rows, np.zeros(bucket, np.int32)
        # Empty rows count two tokens, so that no mean is of nothing.
        lengths, starts = np.full(rows, 2, np.int32), np.ones(rows, np.int32)
        for row, each in enumerate(inputs):
            ids[row, : len(each.ids)] = each.ids
            lengths[row], starts[row] = len(each.ids), each.prefix
        scores, made = self.compiled[bucket](leaves, ids, lengths, starts)
        # On the host: an index into an array of the device would be a program of its own.
        numbers = np.asarray(scores)
        arrays = {name: np.asarray(each) for name, each in made.items()}
        return [
            Gradients([float(numbers[row])], self._of_row(arrays, row, len(each.ids) - 1))
            for row, each in enumerate(inputs)
        ]

    def _of_row(self, arrays: Mapping[str, np.ndarray], row: int, tokens: int) -> Any:
        found = {
            _INPUTS + name: arrays[name][row, :tokens].ravel().tolist() for name in self.inputs
        }
        weights = {_WEIGHTS + name: arrays[name].ravel().tolist() for name in self.weights}
        return found | weights

    def _lowered(self, bucket: PassBucket) -> jax.stages.Lowered:
        where = everywhere(self._leaves[0].sharding)
        ids = jax.ShapeDtypeStruct(bucket, jnp.int32, sharding=where)
        each = jax.ShapeDtypeStruct((bucket.rows,), jnp.int32, sharding=where)
        jitted = jax.jit(self._run, out_shardings=where)
        return jitted.lower(self._leaves, ids, each, each)

    def _run(
        self, leaves: Sequence[jax.Array], ids: jax.Array, lengths: jax.Array, starts: jax.Array
    ) -> tuple[jax.Array, Tensors]:
        """Map ids i32[B, T], their lengths and those of the prefixes i32[B] to scores f32[B] and
        the gradients.
        """
        read, labels = ids[:, :-1], ids[:, 1:]
        at = jnp.arange(read.shape[1])[None]
        there = at < lengths[:, None] - 1
        suffix = there & (at >= starts[:, None] - 1)
        inputs = {"weights": there.astype(jnp.float32)}
        if "embeddings" in self.inputs:
            inputs["embeddings"] = embedded(self._module.assemble(leaves), read)
        tensors = {name: inputs[name] for name in self.inputs}
        tensors |= {name: leaves[place] for name, place in self.weights.items()}

        def loss(tensors: Tensors) -> tuple[jax.Array, jax.Array]:
            held = list(leaves)
            for name, place in self.weights.items():
                held[place] = tensors[name]
            model = self._module.assemble(held)
            vectors = tensors.get("embeddings")
            vectors = embedded(model, read) if vectors is None else vectors
            logprobs = _logprobs(model, vectors, labels, lengths - 1)
            weights = tensors.get("weights", inputs["weights"])
            means = -(weights * logprobs).sum(1) / weights.sum(1)
            return means.sum(), logprobs

        made, logprobs = jax.grad(loss, has_aux=True)(tensors)
        scores = jnp.where(suffix, logprobs, 0.0).sum(1)
        return scores, {name: self._plain(name, each) for name, each in made.items()}

    def _plain(self, name: str, gradient: jax.Array) -> jax.Array:
        """Return a gradient as f32, in the shape that the weight has in the checkpoint."""
        if name in self._tiled:
            *rows, inputs = shape = self._tiled[name]
            gradient = plain_weight(gradient, (math.prod(rows), inputs)).reshape(shape)
        return gradient.astype(jnp.float32)


def _logprobs(model: Any, vectors: jax.Array, labels: jax.Array, lengths: jax.Array) -> jax.Array:
    """f32[B, T]: of each label i32[B, T] after the tokens up to its place; 0 past each length."""
    hidden = hidden_of(model, vectors, lengths)
    logits = model.logits(hidden.reshape(-1, hidden.shape[-1])).reshape(*labels.shape, -1)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.arange(labels.shape[1])[None] < lengths[:, None], chosen, 0.0)


def _places(module: Blueprint, names: Sequence[str]) -> dict[str, int]:
    """Return the place of each named weight among the leaves. Raises InvalidRequest."""
    known: dict[str, int] = {}
    place = 0
    for declared in module.declarations:
        if declared.packing is None:
            known[declared.path] = place
        place += len(declared.leaves)
    for name in names:
        if name not in known:
            close = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.4))
            raise InvalidRequest(
                f"GRADIENT_WRT_MDL_VAR_TENSOR_NAMES has {name!r}, which is no unquantised weight "
                f"of this model; nearest: {close or ', '.join(list(known)[:3])}",
                param="overrides.GRADIENT_WRT_MDL_VAR_TENSOR_NAMES",
            )
    return {name: known[name] for name in names}


def _check_size(
    module: Blueprint, inputs: Sequence[str], weights: Mapping[str, int], context: int, embed: int
) -> None:
    sizes = {"embeddings": context * embed, "weights": context}
    by_path = {declared.path: declared for declared in module.declarations}
    values = sum(sizes[name] for name in inputs)
    values += sum(
        by_path[name].plain[0].bytes * 8 // by_path[name].plain[0].bits for name in weights
    )
    if values > _MOST_VALUES:
        raise InvalidRequest(
            f"an answer of Gradient would have {values} numbers; at most {_MOST_VALUES} are sent: "
            "lower PASS_CONTEXT, or name fewer or smaller tensors",
            param="overrides.PASS_CONTEXT",
        )
