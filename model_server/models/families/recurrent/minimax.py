"""MiniMax-01, MiniMax-M1: lightning attention, softmax attention in some layers, routed experts.

Source: MiniMax 2025 (arXiv:2501.08313, arXiv:2506.13585); names and config keys are those of
Hugging Face's `MiniMaxForCausalLM`. Each half goes on from its normed input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.as_published import fading_rates
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import StateArray
from model_server.kernels.row_sums import logistic, rounded
from model_server.kernels.states import MemoryTokens, Remembering, State
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import decoder_recipe, norm_of, plain_attention
from model_server.models.families.llama import attention_shape
from model_server.models.families.mixtral import block_sparse_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import Activation, activated, activation_of
from model_server.models.layers.layers import Branches, Linear, LiveRows, RmsNorm, live_of
from model_server.models.layers.rope import rope_of
from model_server.models.layers.state_space import remembered
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import GroupRows, Tensor
from model_server.models.weights.weight import WeightForm

# Lightning attention: a sum of outer products of keys and values that fades at a fixed rate.
#
# Source: Qin et al. 2024 (arXiv:2401.04658). A head's memory h, [dv, dk], becomes exp(-s) h + v k,
# and its output is h q. The rate s is that of a head in its layer, and not learnt.


@dataclass(frozen=True, slots=True)
class FadingRates:
    """Rates of a layer's heads, given to it as positions are to others; hashable like a `Rope`."""

    rates: tuple[float, ...]
    short_context: None = None  # as a rope may have

    @classmethod
    def of(cls, layer: int, layers: int, heads: int) -> FadingRates:
        """Rates fall from head to head, and from the first layer to the last."""
        return cls(fading_rates(layer, layers, heads))

    def at(self, positions: jax.Array) -> jax.Array:
        """f32[H], the same at all positions."""
        return jnp.asarray(self.rates, jnp.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningShape:
    embed: int
    heads: int
    head_dim: int

    def axis(self, shards: int) -> str | None:
        return None if shards == 1 or self.heads % shards else "heads"

    def states(self, shards: int) -> tuple[StateArray, ...]:
        return (StateArray((self.heads, self.head_dim, self.head_dim), self.axis(shards)),)


class LightningInputs(NamedTuple):
    """Inputs of the recurrence, f32[C, H, Q] each; in the layer [T, ...]."""

    q: jax.Array
    k: jax.Array
    v: jax.Array


class LightningAttention(nnx.Module):
    """Activates queries, keys and values, runs the recurrence, norms and gates its outputs."""

    def __init__(
        self, shape: LightningShape, prefix: str, form: WeightForm, *, activation: Activation
    ) -> None:
        self.shape, self.activation = shape, activation
        axis, size = shape.axis(form.layout.shards("heads")), shape.head_dim
        inner, joined = shape.heads * size, Tensor(f"{prefix}.qkv_proj.weight")
        parts = [(size * part, size * (part + 1)) for part in range(3)]
        self.qkv = Branches(
            [inner] * 3,
            shape.embed,
            [(axis, "embed")] * 3,
            [GroupRows(joined, 3 * size, *part, groups=shape.heads) for part in parts],
            form=form,
        )
        gate, out = f"{prefix}.output_gate.weight", f"{prefix}.out_proj.weight"
        self.gate = Linear(inner, shape.embed, (axis, "embed"), (gate,), form=form)
        self.live: LiveRows = nnx.data(None)
        self.norm = RmsNorm(inner, (f"{prefix}.norm.weight",), epsilon=1e-6)
        self.out = Linear(shape.embed, inner, ("embed", axis), (out,), form=form)

    def __call__(
        self, x: jax.Array, rotation: Any, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, D] and the states with those of the new tokens.

        rotation: f32[H], the rates at which heads forget.
        """
        s = self.shape
        made = (activated(self.activation, part, live_of(self)) for part in self.qkv(x))
        tokens = LightningInputs(*(part.reshape(-1, s.heads, s.head_dim) for part in made))
        blank = tuple(jnp.zeros(each.shape, jnp.float32) for each in s.states(1))

        def taken(_: Any, given: LightningInputs) -> tuple[MemoryTokens, None]:
            decay = jnp.broadcast_to(-rotation[None], given.k.shape[:2])
            return MemoryTokens(given.v, given.k, given.q, decay), None

        step = Remembering((), taken, remembered, lambda made, _: made)
        mixed, pages = batch.advance(pages, blank, tokens, step)
        normed = self.norm(mixed.reshape(x.shape[0], -1))
        return self.out(logistic(self.gate(x)) * normed), pages


_FACTORS = tuple(
    f"{half}_{part}_factor"
    for half in ("full_attn", "linear_attn", "mlp")
    for part in ("alpha", "beta")
)
KEYS = KnownKeys(
    "minimax",
    (*DECODER, *_FACTORS, "layer_types", "num_experts_per_tok", "num_local_experts"),
    {**DECODER_OFF, **ignored("block_size")},  # how many tokens are computed at once
)
_DEFAULTS = {
    **dict.fromkeys(_FACTORS, 1.0),
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
}
_BASE = {"rope_theta": 1e6}  # if config.json has no rope settings
_ATTENDS = {"full_attention": True, "linear_attention": False}


class WeighedLayer(nnx.Module):
    """Two halves that each add their output to their normed input, both with a factor."""

    def __init__(
        self,
        before_mixer: nnx.Module,
        mixer: nnx.Module,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        *,
        mixer_factors: tuple[float, float],  # of its input and of its output
        ffw_factors: tuple[float, float],
    ) -> None:
        self.before_mixer = before_mixer
        self.mixer = mixer
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.mixer_factors = mixer_factors
        self.ffw_factors = ffw_factors

    def __call__(
        self, x: jax.Array, rotation: Any, pages: Any, batch: PagedBatch
    ) -> tuple[jax.Array, Any]:
        x = self.before_mixer(x)
        mixed, pages = self.mixer(x, rotation, pages, batch)
        kept, added = self.mixer_factors
        x = self.before_ffw(rounded(x * kept) + rounded(mixed * added))
        kept, added = self.ffw_factors
        return rounded(x * kept) + rounded(self.ffw(x) * added), pages


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    settings = dict(config or {}).get("rope_parameters")
    keys = ConfigKeys(config, KEYS, _DEFAULTS if settings else _DEFAULTS | _BASE)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    given = kinds_of_layers(keys, _ATTENDS)
    attends = [index % 2 == 0 for index in range(layers)] if given is None else given
    fading = LightningShape(embed=shape.embed, heads=shape.heads, head_dim=shape.head_dim)
    activation, ffw = activation_of(keys.get("hidden_act", "silu")), block_sparse_ffw(keys)

    def layer(index: int, form: WeightForm) -> WeighedLayer:
        prefix, name = f"model.layers.{index}", f"model.layers.{index}.self_attn"
        return WeighedLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            plain_attention(prefix, shape, form)
            if attends[index]
            else LightningAttention(fading, name, form, activation=activation),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            mixer_factors=_factors(keys, "full_attn" if attends[index] else "linear_attn"),
            ffw_factors=_factors(keys, "mlp"),
        )

    rope, rates = rope_of(keys.all, shape.head_dim), FadingRates.of
    ropes: list[Any] = [
        rope if its else rates(at, layers, shape.heads) for at, its in enumerate(attends)
    ]
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=ropes,
        layer=layer,
        states=lambda shards: tuple(None if its else fading.states(shards) for its in attends),
    )


def _factors(keys: ConfigKeys, half: str) -> tuple[float, float]:
    return keys.number(f"{half}_alpha_factor"), keys.number(f"{half}_beta_factor")


FAMILY = Family("minimax", ("minimax",), "MiniMax-01, MiniMax-M1", configure, own_types_only=True)
