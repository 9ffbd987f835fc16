"""Hunyuan with experts: its dense models' attention, and routed experts beside a shared one.

Source: Tencent 2025, "Hunyuan-A13B"; names and config keys are those of Hugging Face's
`HunYuanMoEV1ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw
from model_server.models.families.hunyuan import hunyuan
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.routing import Router, SoftmaxChoice
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# How training drops tokens, and sizes of the compressed attention of another model.
_UNUSED = ignored(
    "capacity_factor",
    "expert_hidden_dim",
    "group_limited_greedy",
    "kv_lora_rank",
    "moe_drop_tokens",
    "moe_random_routing_dropped_token",
    "n_group",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "topk_group",
    "v_head_dim",
)
KEYS = KnownKeys(
    "hunyuan_moe",
    (
        *hunyuan.KEYS.computed,
        "moe_intermediate_size",
        "moe_topk",
        "num_experts",
        "num_shared_expert",
    ),
    {
        **hunyuan.KEYS.harmless,
        **_UNUSED,
        "moe_layer_num_skipped": one_of(0),
        "norm_topk_prob": one_of(True),
        "routed_scaling_factor": one_of(False, 1.0),
        "use_mixed_mlp_moe": one_of(True),
        "use_mla": one_of(False),
    },
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, hunyuan.DEFAULTS)
    return hunyuan.recipe_of(keys, values, _routed_ffw(keys))


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    _alike(keys, "moe_intermediate_size", ffw)
    _alike(keys, "num_shared_expert", 1)
    count, experts = _alike(keys, "moe_topk", None), _alike(keys, "num_experts", None)
    if count > experts:
        raise CheckpointError(f"config.json has moe_topk = {count} of num_experts = {experts}")
    choice = SoftmaxChoice(count, normalised=True)
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name, parts = f"{prefix}.mlp", {"activation": activation, "form": form}
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="gate_proj", up="up_proj", down="down_proj"
        )
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.wg.weight",)),
            Experts(embed, ffw, sources, **parts),
            GatedFeedForward.hugging_face(embed, ffw, f"{name}.shared_mlp", **parts),
        )

    return build


def _alike(keys: ConfigKeys, key: str, wanted: int | None) -> int:
    """Return the number that a key gives, once or for each layer. Raises CheckpointError.

    wanted: the only one that is computed; None: any.
    """
    given = keys.get(key, wanted)
    numbers = set(given) if isinstance(given, list) else {given}
    found = numbers.pop() if len(numbers) == 1 else None
    if type(found) is not int or found < 1 or wanted not in (None, found):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the hunyuan_moe family needs "
            f"{wanted or 'the same number'} in all layers"
        )
    return found


FAMILY = Family("hunyuan_moe", ("hunyuan_v1_moe",), "Hunyuan-A13B", configure, own_types_only=True)
