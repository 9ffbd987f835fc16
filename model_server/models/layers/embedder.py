"""Recipes of embedding models: the counterpart of recipe.py for embedders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.huggingface.dense_modules import DenseModule, weight_name
from model_server.checkpoints.huggingface.sentence_transformers import TokenScore
from model_server.kernels.cpu.served import is_native
from model_server.kernels.row_sums import mixed_streams, row_sum
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.layers import Linear
from model_server.models.tasks import TASK_DEFAULTS, Tasks, parse_tasks
from model_server.models.weights.quantization import Quantization, Scheme
from model_server.models.weights.sharding import (
    DEFAULT_RULES,
    ONE_DEVICE,
    Layout,
    Rules,
    parse_mesh_shape,
    parse_rules,
)
from model_server.models.weights.weight import Blueprint, WeightForm, blueprint
from sax.errors import InvalidRequest

Pool = Callable[[jax.Array, jax.Array], jax.Array]  # f32[B, T, D], bool[B, T] -> f32[B, D]


def _cls(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return hidden[:, 0]


def _mean(hidden: jax.Array, there: jax.Array) -> jax.Array:
    there = there[..., None].astype(hidden.dtype)
    total = mixed_streams(jnp.where(there > 0, hidden, 0.0), there)[:, 0]
    return total / there.sum(1)


def _max(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return jnp.where(there[..., None], hidden, -jnp.inf).max(1)


def _last(hidden: jax.Array, there: jax.Array) -> jax.Array:
    at = there.sum(1) - 1
    return jnp.take_along_axis(hidden, at[:, None, None], axis=1)[:, 0]


POOLINGS: dict[str, Pool] = {"cls": _cls, "mean": _mean, "max": _max, "last": _last}


def pooled(
    hidden: jax.Array,  # f32[B, T, D]
    lengths: jax.Array,  # i32[B]
    *,
    pooling: str,
    normalise: bool,
    project: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """f32[B, D]: one vector per text, through `project`, of unit length if `normalise`."""
    there = jnp.arange(hidden.shape[1])[None] < lengths[:, None]
    vectors = POOLINGS[pooling](hidden, there)
    if project is not None:
        vectors = project(vectors)
    return unit(vectors) if normalise else vectors


def unit(vectors: jax.Array) -> jax.Array:
    """f32[..., D]: the vectors with length 1."""
    size = jnp.sqrt(row_sum(jnp.square(vectors)))
    return vectors / jnp.maximum(size, 1e-12)


_DENSE_ACTIVATIONS: dict[str, Activation] = {
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    **{name: activation_of(name) for name in ("gelu", "relu", "silu")},
}
DENSE = "projections"  # begins the paths of their weights


class Projected(nnx.Module):
    """An encoder with dense layers over the pooled vector of each input, or over each token's."""

    over_inputs = ("projections",)  # those of tokens, too: every one gets a vector

    def __init__(
        self, encoder: nnx.Module, modules: Sequence[DenseModule], form: WeightForm
    ) -> None:
        # Small, the checkpoint says nothing of them, and they have files of their own.
        form = replace(form, quantization=None, tiles=False)
        self.encoder = encoder
        self.projections = nnx.List([_Dense(module, form) for module in modules])

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to hidden states f32[B, T, D] of the encoder."""
        return self.encoder(tokens, lengths, segments)

    def project(self, vectors: jax.Array) -> jax.Array:
        """Maps hidden states f32[B, D] to vectors f32[B, outputs]."""
        for dense in self.projections:
            vectors = dense(vectors)
        return vectors


class _Dense(nnx.Module):
    """activation(x W + b), and x, or x R, if the module has a residual."""

    def __init__(self, module: DenseModule, form: WeightForm) -> None:
        def linear(name: str, *, biased: bool) -> Linear:
            kernel, bias = ((weight_name(module, f"{name}.{part}"),) for part in ("weight", "bias"))
            axes, sizes = (None, "embed"), (module.outputs, module.inputs)
            return Linear(*sizes, axes, kernel, form=form, bias=bias if biased else None)

        self.linear = linear("linear", biased=module.biased)
        self.activation = module.activation
        self.adds = module.residual
        through = module.residual and module.inputs != module.outputs
        self.residual = linear("residual", biased=False) if through else None

    def __call__(self, vectors: jax.Array) -> jax.Array:
        made = self.linear(vectors)
        if self.activation != "identity":
            made = _DENSE_ACTIVATIONS[self.activation](made)
        if not self.adds:
            return made
        return made + (vectors if self.residual is None else self.residual(vectors))


class TokenHead(nnx.Module):
    """An encoder with a head over each of its tokens."""

    def __init__(self, encoder: nnx.Module, head: nnx.Module) -> None:
        """head: maps f32[N, D] to f32[N, labels]."""
        self.encoder = encoder
        self.head = head

    def __call__(self, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to logits f32[B, T, labels]."""
        hidden = self.encoder(tokens, lengths)
        return of_tokens(self.head, hidden)


def of_tokens(head: Callable[[jax.Array], jax.Array], hidden: jax.Array) -> jax.Array:
    """f32[B, T, N]: what `head` makes of f32[B * T, D], of hidden states f32[B, T, D]."""
    rows, columns, size = hidden.shape
    return head(hidden.reshape(-1, size)).reshape(rows, columns, -1)


# Serving defaults of every embedder.
EMBEDDER_DEFAULTS: Mapping[str, Any] = {
    # Weight dtype: bfloat16 or float32. These models are small and their vectors are compared with
    # ones stored earlier, so match the reference exactly by default.
    "DTYPE": "float32",
    "MAX_CONTEXT": None,  # tokens per input; null: the model's own
    "BATCH_SIZE": 16,  # most inputs per step
    "ICI_MESH_SHAPE": None,  # devices on the axes replica, data, model; null: one device
    "SHARDING_RULES": None,  # changes to the default `Rules`: logical axis -> mesh axis or null
    **TASK_DEFAULTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRecipe:
    """A model that makes no tokens, configured but not in memory.

    To embed, its module maps tokens i32[B, T] and lengths i32[B] to hidden states f32[B, T, D].
    """

    build: Callable[[WeightForm], nnx.Module]
    # The same with a head over so many labels: maps the above, and the segment of each token
    # i32[B, T], to logits f32[B, labels].
    build_classifier: Callable[[WeightForm, int], nnx.Module]
    # The same with a head over each token: maps tokens and lengths to logits f32[B, T, labels].
    build_tagger: Callable[[WeightForm, int], TokenHead]
    embed: int
    vocab: int
    own_context: int  # positions the model has
    max_context: int | None  # from the publish; None: as the checkpoint says
    dtype: str
    batch: int
    unused: tuple[str, ...] = ()  # prefixes of tensors (heads) that an embedding does not need
    unused_in_classes: tuple[str, ...] = ()  # and those that a classifier does not need
    mesh_shape: tuple[int, ...] | None = None  # of this process's devices; None: one
    rules: Rules = DEFAULT_RULES
    tasks: Tasks = Tasks()
    quantize: Scheme | str | None = None  # a scheme; "stored"; None: unquantised
    pooling: str = "mean"  # if neither the publish nor the checkpoint has one
    embeds_only: bool = True  # False: the family can also generate
    # The model that scores pairs by the next token; None: it makes no tokens.
    build_scorer: Callable[[WeightForm, TokenScore], nnx.Module] | None = None
    unused_in_scores: tuple[str, ...] = ()
    chat_template: str | None = None  # from the publish; None: as the checkpoint says
    pairs_images: ClassVar[bool] = False  # it puts texts and images into one space

    def blueprint(
        self,
        quantization: Quantization | None = None,
        labels: int = 0,
        dense: Sequence[DenseModule] = (),
        score: TokenScore | None = None,
        layout: Layout = ONE_DEVICE,
        *,
        tags: bool = False,
    ) -> Blueprint:
        """Return the module without its weights; with a head if there are labels.

        dense: layers over its vectors. score: of pairs, in place of labels. tags: the labels are of
        each token.
        Raises InvalidRequest if `quantization` would change nothing.
        """
        form = WeightForm(
            dtype=jnp.dtype(self.dtype),
            quantization=quantization,
            layout=layout,
            tiles=is_native(layout.platform, layout.mesh.size),
            whole=True,
        )

        def build() -> nnx.Module:
            if score is not None:
                assert self.build_scorer is not None, "only language models have this task"
                return self.build_scorer(form, score)
            if labels:
                return (self.build_tagger if tags else self.build_classifier)(form, labels)
            return Projected(self.build(form), dense, form) if dense else self.build(form)

        made = blueprint(build)
        if quantization is not None:
            quantization.check(each.packing for each in made.declarations if each.packing)
        return made


@dataclass(frozen=True, slots=True)
class EmbedderClass:
    """A registry entry: a model path and how to build its recipe."""

    path: str
    overridable: Mapping[str, Any]
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]
    needs_checkpoint: ClassVar[bool] = True  # for sizes and tokenizer


@dataclass(frozen=True, slots=True)
class EmbedderFamily:
    """Embedding models sized by their checkpoint; one line of the registry."""

    path: str  # short name accepted by publish
    model_types: tuple[str, ...]  # of config.json
    title: str  # display name
    configure: Callable[[Mapping[str, Any] | None, Mapping[str, Any]], EmbedRecipe]

    def model_class(self) -> EmbedderClass:
        return EmbedderClass(self.path, EMBEDDER_DEFAULTS, self.configure)


def embedding(values: Mapping[str, Any], own_context: int) -> dict[str, Any]:
    """Validate override values into the recipe's serving fields. Raises InvalidRequest."""
    if values["DTYPE"] not in ("bfloat16", "float32"):
        raise InvalidRequest(
            f'DTYPE must be "bfloat16" or "float32", not {values["DTYPE"]!r}',
            param="overrides.DTYPE",
        )
    for key in ("MAX_CONTEXT", "BATCH_SIZE"):
        if values[key] is not None and (type(values[key]) is not int or values[key] < 1):
            raise InvalidRequest(
                f"{key} is {values[key]!r}; it must be a number, at least 1",
                param=f"overrides.{key}",
            )
    if values["BATCH_SIZE"] is None:
        raise InvalidRequest("BATCH_SIZE must be a number", param="overrides.BATCH_SIZE")
    wanted = values["MAX_CONTEXT"]
    if wanted is not None and wanted > own_context:
        raise InvalidRequest(
            f"MAX_CONTEXT {wanted} is more than the {own_context} tokens this model supports",
            param="overrides.MAX_CONTEXT",
        )
    return {
        "own_context": own_context,
        "max_context": wanted,
        "dtype": values["DTYPE"],
        "batch": values["BATCH_SIZE"],
        "mesh_shape": parse_mesh_shape(values["ICI_MESH_SHAPE"]),
        "rules": parse_rules(values["SHARDING_RULES"]),
        "tasks": parse_tasks(values),
    }
