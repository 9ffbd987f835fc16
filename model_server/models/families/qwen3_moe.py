"""Qwen3-MoE: Qwen3 with routed experts in some or all layers.

Source: Yang et al. 2025 (arXiv:2505.09388); names and config keys are those of Hugging Face's
`Qwen3MoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import Router, SoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "qwen3_moe",
    (
        *DECODER,
        "attention_bias",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "sliding_window",
        "use_sliding_window",
    ),
    {**DECODER_OFF, **ignored("max_window_layers")},  # every layer slides, or none
)
_DEFAULTS = {
    "num_experts_per_tok": 8,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "sliding_window": 4096,
    "max_position_embeddings": 32768,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    window = keys.whole_or_none("sliding_window") if keys.flag("use_sliding_window") else None
    shape, sparse = attention_shape(keys, window=window), sparse_layers(keys)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope_of(keys.all, shape.head_dim)] * len(sparse),
        layer=layer_of(keys, shape, sparse, routed_ffw(keys)),
        windows=[window] * len(sparse),
    )


def layer_of(
    keys: ConfigKeys, shape: AttentionShape, sparse: Sequence[bool], routed: BuildFfw
) -> Callable[[int, WeightForm], PreNormLayer]:
    """Return what builds the layer of an index; those that are `sparse` have experts."""
    attention, dense = normed_attention(keys), gated_ffw(keys)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            (routed if sparse[index] else dense)(prefix, form),
        )

    return layer


def sparse_layers(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it has experts. Raises CheckpointError.

    Every `decoder_sparse_step`-th layer is sparse unless listed in `mlp_only_layers`.
    """
    step, dense = keys.whole("decoder_sparse_step"), keys.get("mlp_only_layers", [])
    if not isinstance(dense, list) or any(type(index) is not int for index in dense):
        raise CheckpointError(f"config.json has mlp_only_layers = {dense!r}; give layer indices")
    layers = range(keys.whole("num_hidden_layers"))
    return [(index + 1) % step == 0 and index not in dense for index in layers]


def routed_ffw(
    keys: ConfigKeys,
    width: str = "moe_intermediate_size",
    shared: Callable[[str, WeightForm], nnx.Module] | None = None,
    *,
    together: bool = False,
    turned: bool = False,
) -> BuildFfw:
    """Builder of a layer's experts.

    width: the config's key for it. shared: builds what every token uses, from the prefix.
    together: all experts are stored in two tensors; turned: each as [in, out].
    """
    embed, ffw = keys.whole("hidden_size"), keys.whole(width)
    experts = keys.whole_or_none("num_experts")
    if experts is None:  # transformers 5 renamed it
        experts = keys.whole("num_local_experts", 128)
    choice = SoftmaxChoice(checked_count(keys, experts), keys.flag("norm_topk_prob"))
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.mlp"
        held = f"{name}.experts"
        sources = (
            ExpertSources.together(
                experts,
                ffw,
                gate_up=f"{held}.gate_up_proj",
                down=f"{held}.down_proj",
                turned=turned,
            )
            if together
            else ExpertSources.hugging_face(
                held, experts, gate="gate_proj", up="up_proj", down="down_proj"
            )
        )
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",)),
            Experts(embed, ffw, sources, activation=activation, form=form),
            shared and shared(name, form),
        )

    return build


FAMILY = Family("qwen3_moe", ("qwen3_moe",), "Qwen3-MoE", configure)
