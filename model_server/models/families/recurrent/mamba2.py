"""Mamba-2: state spaces in every layer, without attention or feed-forwards.

Source: Dao and Gu 2024 (arXiv:2405.21060); names and config keys are those of Hugging Face's
`Mamba2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.kernels.pages import CacheShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.recurrent.mixers import step_limits
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import Embedding, Linear, RmsNorm
from model_server.models.layers.pre_norm import MixerLayer
from model_server.models.layers.state_space import StateSpace, StateSpaceShape
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "mamba2",
    (
        "conv_kernel",
        "expand",
        "head_dim",
        "hidden_size",
        "layer_norm_epsilon",
        "n_groups",
        "num_heads",
        "num_hidden_layers",
        "state_size",
        "tie_word_embeddings",
        "time_step_limit",
        "use_bias",
        "use_conv_bias",
        "vocab_size",
    ),
    # How steps are drawn before training, and how a product is divided.
    {
        **ignored("chunk_size", "rescale_prenorm_residual", "time_step_floor", "time_step_max"),
        **ignored("residual_in_fp32", "time_step_init_scheme", "time_step_min", "time_step_rank"),
        "hidden_act": one_of("silu"),
        "norm_before_gate": one_of(False),
        "rms_norm": one_of(True),
    },
)
_DEFAULTS = {
    "conv_kernel": 4,
    "expand": 2,
    "head_dim": 64,
    "layer_norm_epsilon": 1e-5,
    "n_groups": 8,
    "num_heads": 128,
    "state_size": 128,
}
_CONTEXT = 2**20  # a state holds any number of tokens


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, layers = _shape(keys), keys.whole("num_hidden_layers")

    def norm(name: str) -> RmsNorm:
        return RmsNorm(shape.embed, (f"backbone.{name}.weight",), epsilon=shape.epsilon)

    def layer(index: int, form: WeightForm) -> MixerLayer:
        name = f"layers.{index}"
        return MixerLayer(norm(f"{name}.norm"), StateSpace(shape, f"backbone.{name}.mixer", form))

    def build(form: WeightForm) -> Decoder:
        vocab, table = keys.whole("vocab_size"), ("backbone.embeddings.weight",)
        tied = keys.flag("tie_word_embeddings")
        axes, head = ("vocab", "embed"), ("lm_head.weight",)
        return Decoder(
            embedding=Embedding(vocab, shape.embed, table, form=form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=norm("norm_f"),
            head=None if tied else Linear(vocab, shape.embed, axes, head, form=form),
            ropes=[None] * layers,
        )

    def cache(shards: int) -> CacheShape:
        states = (shape.states(shards),) * layers
        return CacheShape(layers=layers, kv_heads=1, key_dim=128, value_dim=128, states=states)

    return Recipe(
        build=build,
        cache=cache,
        embed=shape.embed,
        vocab=keys.whole("vocab_size"),
        windows=(2,) * layers,
        **serving(values, _CONTEXT),
    )


def _shape(keys: ConfigKeys) -> StateSpaceShape:
    embed, heads, size = (keys.whole(key) for key in ("hidden_size", "num_heads", "head_dim"))
    groups, expand = keys.whole("n_groups"), keys.number("expand")
    if heads * size != int(embed * expand) or heads % groups:
        raise CheckpointError(
            f"config.json has num_heads = {heads} of head_dim = {size} and n_groups = {groups}; "
            f"they must make up hidden_size * expand = {int(embed * expand)}, in equal groups"
        )
    least, most = step_limits(keys)
    return StateSpaceShape(
        embed=embed,
        heads=heads,
        head_dim=size,
        groups=groups,
        state=keys.whole("state_size"),
        width=keys.whole("conv_kernel"),
        epsilon=keys.number("layer_norm_epsilon"),
        norm_groups=groups,
        biased=keys.flag("use_bias"),
        conv_biased=keys.flag("use_conv_bias", True),
        least_step=least,
        most_step=most,
    )


FAMILY = Family("mamba2", ("mamba2",), "Mamba-2, Codestral Mamba", configure)
