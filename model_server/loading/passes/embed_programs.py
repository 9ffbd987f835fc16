"""The programs that compute a vector per input or per token, an embedding or scores.

A model is a function from tokens to vectors.

A decoder family's recipe can be read as one that makes no tokens: it embeds or classifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.huggingface.sentence_transformers import SentenceSettings
from model_server.kernels.cpu.served import is_native
from model_server.kernels.row_sums import logistic, row_softmax
from model_server.loading.passes.loaded_passes import Ids, TokenText, Vector
from model_server.loading.passes.pass_programs import PassBucket, PassPrograms
from model_server.models.layers.decoder import Decoder, set_whole_rows
from model_server.models.layers.embedder import EmbedRecipe, TokenHead, of_tokens, pooled, unit
from model_server.models.layers.layers import Linear
from model_server.models.layers.whole_decoder import LastTokenHead, NextTokenScore, WholeDecoder
from model_server.models.recipe import Recipe
from model_server.models.weights.quantized import byte_shape
from model_server.models.weights.sharding import divided_rows, own_device
from model_server.models.weights.weight import Blueprint, WeightForm, leaf_shapes
from sax.errors import CheckpointError, InvalidRequest

# From a module, tokens i32[B, T] (or MixedTokens) and lengths i32[B] to vectors f32[B, D], or
# f32[B, T, D]
Encode = Callable[[Any, Any, jax.Array], jax.Array]
Input = TypeVar("Input")
Output = TypeVar("Output")
_BATCH = 16  # most inputs per step, as of encoders
_HEADS = ("lm_head.", "score.")


Activation = Callable[[jax.Array], jax.Array]  # f32[B, labels] -> f32[B, labels]

ACTIVATIONS: Mapping[str, Activation] = {
    "softmax": row_softmax,
    "sigmoid": logistic,
    "none": lambda logits: logits,
}
_BY_PROBLEM = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_BY_TORCH = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


def activation_of(config: Mapping[str, Any], labels: int) -> str:
    """Return which function makes scores of logits: as sentence-transformers has it stored, else by
    `problem_type`, else a sigmoid for one label and a softmax for several.

    Raises CheckpointError for one that is not supported.
    """
    own = _sentence_transformers(config)
    if own is not None:
        if own not in _BY_TORCH:
            raise CheckpointError(
                f"config.json makes scores by {own!r}; supported are {', '.join(_BY_TORCH)}: "
                "publish it with CLASSIFY_ACTIVATION to choose one"
            )
        return _BY_TORCH[own]
    problem = config.get("problem_type")
    if problem is None or (problem == "single_label_classification" and labels == 1):
        return "sigmoid" if labels == 1 else "softmax"
    if problem not in _BY_PROBLEM:
        raise CheckpointError(
            f"config.json has problem_type = {problem!r}; supported are {', '.join(_BY_PROBLEM)}"
        )
    return _BY_PROBLEM[problem]


def _sentence_transformers(config: Mapping[str, Any]) -> Any:
    nested = config.get("sentence_transformers")
    if isinstance(nested, dict):
        return cast("dict[str, Any]", nested).get("activation_fn")
    return config.get("sbert_ce_default_activation_function")


def _called(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    return model(tokens, lengths)


def embedding_as(settings: SentenceSettings, pooling: str, hidden: Encode = _called) -> Encode:
    """Return the function from tokens to vectors; `pooling`: if the settings have none.

    hidden: from a module, tokens and lengths to hidden states f32[B, T, D].
    """
    how = settings.pooling or pooling

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return pooled(
            hidden(model, tokens, lengths),
            lengths,
            pooling=how,
            normalise=settings.normalise,
            project=model.project if settings.dense else None,
        )

    return encode


def embedding_tokens(settings: SentenceSettings) -> Encode:
    """Return the function from tokens to the vector of each, f32[B, T, D]."""

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        vectors = of_tokens(model.project, model(tokens, lengths))
        return unit(vectors) if settings.normalise else vectors

    return encode


def tagging(activation: str) -> Encode:
    """Return the function from tokens to scores of each, f32[B, T, labels]."""

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        return ACTIVATIONS[activation](model(tokens, lengths))

    return encode


def classifying(activation: str, separator: int | None) -> Encode:
    """Return the function from tokens to scores f32[B, labels].

    The text after the first `separator` is the second of a pair.
    """

    def encode(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        segments = None
        if separator is not None:
            ends = jnp.cumsum(tokens == separator, axis=1) - (tokens == separator)
            segments = jnp.minimum(ends, 1)
        return ACTIVATIONS[activation](model(tokens, lengths, segments))

    return encode


class EncodePrograms(PassPrograms[Input, Output]):
    """The buckets of one module, from tokens to arrays."""

    skips_padding: ClassVar[bool] = True  # nothing is asked of what is behind an input's length

    def __init__(
        self,
        module: Blueprint,
        encode: Encode,
        *,
        context: int,
        batch: int,
        leaves: Sequence[jax.ShapeDtypeStruct] | None = None,
        filler: int | None = None,
    ) -> None:
        """leaves: shapes and shardings of the weights; None: all on this process's own device.

        filler: the token with which every text is filled up to the context; None: its own length
        counts.
        """
        shortest = {} if filler is None else {"shortest": context}
        super().__init__("embedding", context, batch, self._lowered, **shortest)
        self._filler, self._fills = filler or 0, filler is not None
        given = leaf_shapes(module, own_device()) if leaves is None else leaves
        self._leaves = tuple(map(byte_shape, given))
        self._module = module
        self._encode = encode

    def _lowered(self, bucket: PassBucket) -> jax.stages.Lowered:
        def run(leaves: list[jax.Array], tokens: jax.Array, lengths: jax.Array) -> jax.Array:
            return self._encode(self._assembled(leaves, lengths, bucket), tokens, lengths)

        where = divided_rows(self._leaves[0].sharding, bucket.rows)
        tokens = jax.ShapeDtypeStruct(bucket, jnp.int32, sharding=where)
        lengths = jax.ShapeDtypeStruct((bucket.rows,), jnp.int32, sharding=where)
        return jax.jit(run).lower(self._leaves, tokens, lengths)

    def _assembled(
        self, leaves: Sequence[jax.Array], lengths: jax.Array, bucket: PassBucket
    ) -> Any:
        """Return the module that computes inputs of `lengths` i32[B]."""
        module = self._module.assemble(leaves)
        devices = self._leaves[0].sharding.device_set
        if is_native(next(iter(devices)).platform, len(devices)):
            set_whole_rows(module, lengths if self.skips_padding else None, bucket.length)
        return module

    def _made(
        self, leaves: Sequence[jax.Array], texts: Sequence[TokenText], bucket: PassBucket
    ) -> np.ndarray:
        """f32[B, ...]: what the module makes of each text."""
        tokens = np.full(bucket, self._filler, np.int32)
        # Empty rows count one token, so that pooling does not divide by zero.
        lengths = np.ones(bucket.rows, np.int32)
        for row, (ids, seen) in enumerate(texts):
            tokens[row, : len(ids)] = ids
            lengths[row] = bucket.length if self._fills else seen
        return np.asarray(self.compiled[bucket](leaves, tokens, lengths))


class EmbedPrograms(EncodePrograms[Ids, Vector]):
    """The buckets of one module's vectors, one per input."""

    @staticmethod
    def ids(given: Ids) -> Ids:
        return given

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[Ids], bucket: PassBucket
    ) -> list[Vector]:
        vectors = self._made(leaves, [TokenText(ids, len(ids)) for ids in inputs], bucket)
        return vectors[: len(inputs)].tolist()


class TokenPrograms(EncodePrograms[TokenText, np.ndarray]):
    """The buckets of one module's vectors, one per token: f32[T, N] of an input of T tokens."""

    skips_padding = False  # tokens that none of the others sees stand there

    @staticmethod
    def ids(given: TokenText) -> Ids:
        return given.ids

    def run(
        self, leaves: Sequence[jax.Array], inputs: Sequence[TokenText], bucket: PassBucket
    ) -> list[np.ndarray]:
        vectors = self._made(leaves, inputs, bucket)
        # Copies: a view would keep the whole batch.
        return [vectors[row, : len(text.ids)].copy() for row, text in enumerate(inputs)]


def whole_recipe(recipe: Recipe) -> EmbedRecipe:
    """Return the recipe of an embedder or classifier. Raises InvalidRequest for one in stages."""
    _check_one_stage(recipe)

    def decoder(form: WeightForm) -> Decoder:
        made = recipe.build(form)
        assert isinstance(made, Decoder), "every language model is a decoder"
        return made

    def build(form: WeightForm) -> WholeDecoder:
        return WholeDecoder(decoder(form), causal=recipe.causal)

    def classifier(form: WeightForm, labels: int) -> LastTokenHead:
        head = Linear(labels, recipe.embed, (None, "embed"), ("score.weight",), form=form)
        return LastTokenHead(build(form), head)

    def tagger(form: WeightForm, labels: int) -> TokenHead:
        kernel, bias = ("score.weight",), ("score.bias",)
        head = Linear(labels, recipe.embed, (None, "embed"), kernel, form=form, bias=bias)
        return TokenHead(build(form), head)

    return EmbedRecipe(
        build=build,
        build_classifier=classifier,
        build_tagger=tagger,
        build_scorer=lambda form, score: NextTokenScore(decoder(form), score),
        embed=recipe.embed,
        vocab=recipe.vocab,
        own_context=recipe.max_context,
        max_context=recipe.tasks.max_context,
        dtype=recipe.dtype,
        batch=_BATCH,
        mesh_shape=recipe.mesh_shape,
        rules=recipe.rules,
        unused=(*recipe.unused, *_HEADS),
        unused_in_classes=(*recipe.unused, *_HEADS[:1]),
        unused_in_scores=recipe.unused,
        tasks=recipe.tasks,
        quantize=recipe.quantize,
        # The last token is the only one of a causal model that has seen all others.
        pooling="last" if recipe.causal else "mean",
        embeds_only=not recipe.causal,
        chat_template=recipe.chat.template,
    )


def _check_one_stage(recipe: Recipe) -> None:
    if recipe.stages > 1:
        raise InvalidRequest(
            "a model that only embeds or ranks has one stage: leave NUM_STAGES out, or give its "
            "devices by ICI_MESH_SHAPE",
            param="overrides.NUM_STAGES",
        )
