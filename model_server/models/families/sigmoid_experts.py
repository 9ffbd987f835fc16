"""Experts chosen by sigmoids in groups, beside shared ones, with the names of DeepSeek-V3."""

from __future__ import annotations

from dataclasses import dataclass

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.routing import Choice, GroupedSigmoidChoice, Router, checked_count
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Of its experts, which other families have as well.
ROUTED = (
    "first_k_dense_replace",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_experts_per_tok",
    "num_nextn_predict_layers",
    "routed_scaling_factor",
    "scoring_func",
    "topk_group",
    "topk_method",
)


def first_sparse(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True for all but the first ones, which have no experts."""
    dense = keys.whole("first_k_dense_replace", 0, least=0)
    return [index >= dense for index in range(keys.whole("num_hidden_layers"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedNames:
    """Tensor names of a layer's experts, below its prefix; the defaults are DeepSeek-V3's."""

    block: str = "mlp"
    router: str = "gate"
    bias: str | None = "gate.e_score_correction_bias"  # of the choice
    shared: str = "shared_experts"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")  # of an expert
    together: bool = False  # two tensors hold the matrices of all experts


_DEEPSEEK = RoutedNames()


def routed_ffw(
    keys: ConfigKeys,
    choice: Choice | None = None,
    *,
    names: RoutedNames = _DEEPSEEK,
    shared: int | None = None,
    gate: Activation | None = None,
    shared_gate: Activation | None = None,
) -> BuildFfw:
    """Builder of a layer's experts, beside those that every token uses.

    choice: None: by sigmoids, as config.json says. shared: width of the feed-forward that every
    token uses; None: that of n_shared_experts. gate: None: as config.json says. shared_gate: of
    that feed-forward; None: the same.
    """
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size", 2048)
    experts = keys.whole("n_routed_experts")
    if shared is None:  # several are stored, and computed, as one wider feed-forward
        shared = ffw * keys.whole("n_shared_experts", 0, least=0)
    chosen = sigmoid_choice(keys, experts) if choice is None else choice
    usual = gate or activation_of(keys.get("hidden_act", "silu"))
    keys.only("moe_layer_freq", 1)

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.{names.block}"
        sources = _sources(f"{name}.experts", experts, ffw, names)
        always = None
        if shared:
            always = GatedFeedForward.hugging_face(
                embed,
                shared,
                f"{name}.{names.shared}",
                activation=shared_gate or usual,
                form=form,
            )
        offset = None if names.bias is None else (f"{name}.{names.bias}",)
        return RoutedFeedForward(
            Router(embed, experts, chosen, (f"{name}.{names.router}.weight",), bias=offset),
            Experts(embed, ffw, sources, activation=usual, form=form),
            always,
        )

    return build


def _sources(name: str, experts: int, ffw: int, names: RoutedNames) -> ExpertSources:
    if names.together:
        return ExpertSources.together(
            experts, ffw, gate_up=f"{name}.gate_up_proj", down=f"{name}.down_proj"
        )
    gate, up, down = names.parts
    return ExpertSources.hugging_face(name, experts, gate=gate, up=up, down=down)


def sigmoid_choice(keys: ConfigKeys, experts: int) -> GroupedSigmoidChoice:
    """Read how experts are chosen. Raises CheckpointError."""
    keys.only("scoring_func", "sigmoid")
    keys.only("topk_method", "noaux_tc")
    groups, kept = keys.whole("n_group", 1), keys.whole("topk_group", 1)
    if experts % groups or kept > groups or (kept < groups and experts // groups < 2):
        raise CheckpointError(
            f"config.json has n_group = {groups} and topk_group = {kept} for {experts} experts; "
            "groups must be of equal size with at least two experts, and topk_group at most n_group"
        )
    return GroupedSigmoidChoice(
        count=checked_count(keys, experts // groups * kept),
        groups=groups,
        kept=kept,
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 2.5),
    )
