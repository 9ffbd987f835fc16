"""Gemma 3n: several versions of each token, inputs per layer, shared keys and sparse gates.

What hears is `media/gemma_sounds`, what sees `media/gemma3n_vision_encoder`. A layer predicts all
versions of a token from all, replaces the active one by its output, and corrects the others by how
far it was off (Baykal et al. 2023, arXiv:2301.13310, alternating updates).
Source: Google 2025, "Gemma 3n"; names and config keys are those of Hugging Face's
`Gemma3nForCausalLM` and `Gemma3nForConditionalGeneration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.row_sums import rounded, row_mean
from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.gemma3 import ropes_of
from model_server.models.families.gemmas.lending_recipe import (
    activation_in,
    epsilon_of,
    gate_of,
    lenders_of,
    lending_recipe,
    norms_of,
)
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import Activation, gated
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import (
    Linear,
    LiveRows,
    RmsNorm,
    live_of,
    project_finely,
    sum_in_order,
)
from model_server.models.layers.lending import KeysValues, LentAttention, PerLayerGate
from model_server.models.layers.rope import Rotary
from model_server.models.media.gemma3n_vision_encoder import IMAGE_KEYS_3N, gemma3n_vision
from model_server.models.media.gemma_sounds import SOUND_KEYS_3N, gemma3n_sounds
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError

_LEAST = 1e-5  # mean square of a version


class Alternation(nnx.Module):
    """Predicts and corrects the versions f32[T, A, D] around one layer."""

    def __init__(
        self,
        embed: int,
        versions: int,
        active: int,
        prefix: str,
        *,
        epsilon: float,
        scaled: bool,
    ) -> None:
        self.active, self.scaled, self.shrink = active, scaled, 1 / embed

        # Small, and every version hinges on them: float32, on every device.
        def matrix(name: str, *shape: int) -> nnx.Param:
            axes, names = (None,) * len(shape), (f"{prefix}.{name}",)
            return weight(shape, axes, names, dtype=jnp.float32, spread=0.02)

        self.norm = RmsNorm(embed, (f"{prefix}.router_norm.weight",), epsilon=epsilon)
        self.router = matrix("modality_router.weight", versions, embed)
        self.prediction = matrix("prediction_coefs.weight", versions**2, versions)
        self.correction = matrix("correction_coefs.weight", versions, versions)
        self.live: LiveRows = nnx.data(None)
        self.output_scale = matrix("correct_output_scale", embed)

    def predict(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, A, D] to f32[T, A, D]."""
        found = self._routed(x[:, self.active], self.prediction[...])
        shares = found.reshape(x.shape[0], x.shape[1], x.shape[1])
        if self.live is None:
            return x + jnp.einsum("tba,tad->tbd", shares, x, precision="highest")
        return x + sum_in_order(shares[..., None] * x[:, None], axis=2)

    def correct(self, predicted: jax.Array, made: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Take in a layer's output f32[T, D].

        Returns f32[T, A, D] and the active version, scaled: f32[T, D].
        """
        off = made - predicted[:, self.active]
        shares = self._routed(made, self.correction[...]) + 1.0
        corrected = predicted + rounded(shares[..., None] * off[:, None])
        first = corrected[:, self.active]
        return corrected, first * self.output_scale[...][None] if self.scaled else first

    def _routed(self, x: jax.Array, coefficients: jax.Array) -> jax.Array:
        """Maps f32[T, D] to f32[T, N] by coefficients f32[N, A]."""
        normed = self.norm(x) * self.shrink
        live = live_of(self)
        routed = jnp.tanh(project_finely(normed, self.router[...], live))
        return project_finely(routed, coefficients, live)


class Residual(nnx.Module):
    """x + norm(right(left(x))): a residual through a narrow matrix ("LAuReL", arXiv:2411.07501)."""

    def __init__(
        self, embed: int, rank: int, prefix: str, form: WeightForm, *, epsilon: float
    ) -> None:
        left, right = (f"{prefix}.linear_{side}.weight" for side in ("left", "right"))
        self.left = Linear(rank, embed, (None, "embed"), (left,), form=form)
        self.right = Linear(embed, rank, ("embed", None), (right,), form=form)
        self.norm = RmsNorm(embed, (f"{prefix}.post_laurel_norm.weight",), epsilon=epsilon)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.norm(self.right(self.left(x)))


class _Versions(nnx.Module):
    """Projections of all versions but the first, made as long as the first one is."""

    def __init__(self, embed: int, versions: int, name: str, form: WeightForm) -> None:
        self.projections = nnx.List(
            [
                Linear(embed, embed, (None, "embed"), (f"{name}.{at}.weight",), form=form)
                for at in range(versions - 1)
            ]
        )

    def projected(self, inputs: jax.Array) -> jax.Array:
        """Maps f32[T, A, D] to f32[T, A, D]."""
        first = inputs[:, 0]
        size = jnp.sqrt(row_mean(jnp.square(first)))
        made = [first]
        for at, projection in enumerate(self.projections, 1):
            x = projection(inputs[:, at])
            square = row_mean(jnp.square(x))
            made.append(x * size / jnp.sqrt(jnp.maximum(square, _LEAST)))
        return jnp.stack(made, axis=1)


class Expanded(_Versions):
    """Maps embeddings f32[T, D] to versions f32[T, A * D]."""

    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = jnp.stack([x] * (1 + len(self.projections)), axis=1)
        return self.projected(inputs).reshape(x.shape[0], -1)


class Merged(_Versions):
    """Maps versions f32[T, A * D] to their normed mean f32[T, D]."""

    def __init__(
        self, embed: int, versions: int, name: str, form: WeightForm, norm: nnx.Module
    ) -> None:
        super().__init__(embed, versions, name, form)
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.reshape(x.shape[0], 1 + len(self.projections), -1)
        return self.norm(sum_in_order(self.projected(inputs), axis=1) / inputs.shape[1])


class SparseFeedForward(GatedFeedForward):
    """A gated feed-forward that closes all gates but the largest.

    They are taken for normally distributed: those within the lowest share `sparsity` are closed.
    """

    def __init__(self, embed: int, ffw: int, *, sparsity: float, **rest: Any) -> None:
        super().__init__(embed, ffw, **rest)
        self.deviations = NormalDist().inv_cdf(sparsity)

    def __call__(self, x: jax.Array) -> jax.Array:
        opening, up = self.gate_up(x)
        mean = row_mean(opening)
        spread = jnp.sqrt(row_mean(jnp.square(opening - mean)))
        opening = jax.nn.relu(opening - mean - rounded(spread * self.deviations))
        return self.down(gated(self.activation, opening, up, live_of(self)))


def sparse_ffw(
    sizes: tuple[int, int],
    prefix: str,
    form: WeightForm,
    activation: Activation,
    sparsity: float,
) -> GatedFeedForward:
    """Return the feed-forward of these sizes, sparse unless the share is 0."""
    gate, up, down = ((f"{prefix}.{part}_proj.weight",) for part in ("gate", "up", "down"))
    rest: dict[str, Any] = {"activation": activation, "form": form}
    if not sparsity:
        return GatedFeedForward(*sizes, gate=gate, up=up, down=down, **rest)
    return SparseFeedForward(*sizes, gate=gate, up=up, down=down, sparsity=sparsity, **rest)


class AlternatingLayer(nnx.Module):
    """Four norms around two halves, beside a narrow residual, between prediction and correction."""

    def __init__(
        self,
        norms: tuple[nnx.Module, nnx.Module, nnx.Module, nnx.Module],
        attention: LentAttention,
        ffw: nnx.Module,
        *,
        alternation: Alternation,
        residual: nnx.Module,
        gate: PerLayerGate,
    ) -> None:
        self.before_attention, self.after_attention, self.before_ffw, self.after_ffw = norms
        self.attention = attention
        self.ffw = ffw
        self.alternation = alternation
        self.residual = residual
        self.gate = gate

    def __call__(
        self,
        stream: jax.Array,  # f32[T, A * D]
        own: jax.Array,  # f32[T, P]
        rotation: Rotary,
        pages: LayerPages,
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        versions = self.alternation.prediction[...].shape[1]
        predicted = self.alternation.predict(stream.reshape(stream.shape[0], versions, -1))
        x = predicted[:, self.alternation.active]
        normed = self.before_attention(x)
        mixed, pages, lent = self.attention(normed, rotation, pages, lent, batch)
        x = x + self.after_attention(mixed) + self.residual(normed)
        x = rounded(x / math.sqrt(2))
        x = x + self.after_ffw(self.ffw(self.before_ffw(x)))
        corrected, first = self.alternation.correct(predicted, x)
        added = self.gate(first, own)
        corrected = corrected.at[:, 1:].add(added[:, None])
        return corrected.reshape(stream.shape), pages, lent


# Limits of training, and a scale that is not used.
_UNUSED = ignored("altup_coef_clip", "altup_lr_multiplier", "query_pre_attn_scalar")
KEYS = KnownKeys(
    "gemma3n",
    (
        *DECODER,
        "activation_sparsity_pattern",
        "altup_active_idx",
        "altup_correct_scale",
        "altup_num_inputs",
        "attention_bias",
        "final_logit_softcapping",
        "hidden_activation",
        "hidden_size_per_layer_input",
        "laurel_rank",
        "layer_types",
        "num_kv_shared_layers",
        "rope_local_base_freq",
        "sliding_window",
        "vocab_size_per_layer_input",
        *SOUND_KEYS_3N,
        *IMAGE_KEYS_3N,
    ),
    {**DECODER_OFF, **_UNUSED},
)
DEFAULTS = {
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "altup_num_inputs": 4,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2048,
    "hidden_size_per_layer_input": 256,
    "intermediate_size": 16384,
    "laurel_rank": 64,
    "max_position_embeddings": 32768,
    "num_attention_heads": 8,
    "num_hidden_layers": 35,
    "num_key_value_heads": 2,
    "num_kv_shared_layers": 15,
    "sliding_window": 512,
    "vocab_size": 262400,
    "vocab_size_per_layer_input": 262144,
}
_SPARSE, _SHARE = 10, 0.95  # layers at the front of a model with more, and of their gates


def widths_of(keys: ConfigKeys) -> list[int]:
    """Return the feed-forward's width in each layer. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("intermediate_size")
    if not isinstance(given, list):
        return [keys.whole("intermediate_size")] * layers
    return _checked("intermediate_size", given, layers, lambda x: type(x) is int and x > 0)


def sparsities_of(keys: ConfigKeys) -> list[float]:
    """Return the share of gates that each layer closes. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("activation_sparsity_pattern")
    if given is None:
        sparse = _SPARSE if layers > _SPARSE else 0
        return [_SHARE] * sparse + [0.0] * (layers - sparse)
    return _checked("activation_sparsity_pattern", given, layers, _is_share)


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1


def _checked(key: str, given: Any, layers: int, fits: Any) -> list[Any]:
    if not isinstance(given, list) or len(given) != layers or not all(map(fits, given)):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the gemma3n family needs a fitting number for "
            f"each of its {layers} layers"
        )
    return given


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    slides = sliding_layers(keys, lambda index: (index + 1) % 5 != 0)
    lenders, window = lenders_of(keys, slides), keys.whole("sliding_window")
    shape, versions = replace(attention_shape(keys), scale=1.0), keys.whole("altup_num_inputs")
    widths, sparsities, embed = widths_of(keys), sparsities_of(keys), shape.embed
    whole, local = ropes_of(keys)

    def layer(index: int, form: WeightForm) -> AlternatingLayer:
        name = f"model.layers.{index}"
        rank, epsilon = keys.whole("laurel_rank"), epsilon_of(keys)
        return AlternatingLayer(
            norms_of(keys, name),
            LentAttention(
                replace(shape, window=window if slides[index] else None),
                f"{name}.self_attn",
                form,
                epsilon=epsilon,
                borrows=lenders[index] is not None,
                biased=keys.flag("attention_bias"),
            ),
            sparse_ffw(
                (embed, widths[index]), f"{name}.mlp", form, activation_in(keys), sparsities[index]
            ),
            alternation=_alternation(keys, f"{name}.altup"),
            residual=Residual(embed, rank, f"{name}.laurel", form, epsilon=epsilon),
            gate=gate_of(keys, name, form),
        )

    def expand(form: WeightForm) -> Expanded:
        return Expanded(embed, versions, "model.altup_projections", form)

    def final(form: WeightForm) -> Merged:
        norm = norm_of(keys, "model.norm")
        return Merged(embed, versions, "model.altup_unembed_projections", form, norm)

    return lending_recipe(
        keys,
        values,
        shape=shape,
        lenders=lenders,
        ropes=[local if slide else whole for slide in slides],
        windows=[window if slide else None for slide in slides],
        layer=layer,
        final=final,
        expand=expand,
        versions=versions,
        media=[gemma3n_vision(keys, embed), gemma3n_sounds(keys, embed)],
    )


def _alternation(keys: ConfigKeys, name: str) -> Alternation:
    return Alternation(
        keys.whole("hidden_size"),
        keys.whole("altup_num_inputs"),
        keys.whole("altup_active_idx", least=0),
        name,
        epsilon=epsilon_of(keys),
        scaled=keys.flag("altup_correct_scale"),
    )


FAMILY = Family("gemma3n", ("gemma3n_text", "gemma3n"), "Gemma 3n", configure, own_types_only=True)
