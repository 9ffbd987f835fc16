"""Feed-forwards and experts of Nemotron-H: two matrices each, without a gate."""

from __future__ import annotations

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw
from model_server.models.families.sigmoid_experts import sigmoid_choice
from model_server.models.layers.experts import (
    Experts,
    ExpertSources,
    NarrowedExperts,
    RoutedFeedForward,
)
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Activation, Linear, activation_of
from model_server.models.layers.routing import Router
from model_server.models.weights.weight import WeightForm


def plain_ffw(keys: ConfigKeys, width: str = "intermediate_size") -> BuildFfw:
    """Builder of a feed-forward from the prefix of its names; width: the config's key for it."""
    embed, ffw, biased = keys.whole("hidden_size"), keys.whole(width), keys.flag("mlp_bias")
    activation = _activation(keys)

    def build(name: str, form: WeightForm) -> FeedForward:
        up, down = f"{name}.up_proj", f"{name}.down_proj"
        return FeedForward(
            embed,
            ffw,
            up=(f"{up}.weight",),
            down=(f"{down}.weight",),
            activation=activation,
            form=form,
            biases=((f"{up}.bias",), (f"{down}.bias",)) if biased else None,
        )

    return build


def routed_ffw(keys: ConfigKeys) -> BuildFfw:
    """Builder of experts beside a feed-forward that every token uses."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, latent = keys.whole("n_routed_experts"), keys.whole_or_none("moe_latent_size")
    choice, activation = sigmoid_choice(keys, experts), _activation(keys)
    shared, biased = plain_ffw(keys, "moe_shared_expert_intermediate_size"), keys.flag("mlp_bias")
    keys.only("n_shared_experts", 1)

    def build(name: str, form: WeightForm) -> RoutedFeedForward:
        def projected(outputs: int, inputs: int, name: str) -> Linear:
            bias = (f"{name}.bias",) if biased else None
            axes = (None, "embed") if inputs == embed else ("embed", None)
            return Linear(outputs, inputs, axes, (f"{name}.weight",), form=form, bias=bias)

        def of_experts(width: int) -> Experts:
            sources = ExpertSources.hugging_face(
                f"{name}.experts", experts, gate=None, up="up_proj", down="down_proj"
            )
            return Experts(width, ffw, sources, activation=activation, form=form)

        narrowed = latent and NarrowedExperts(
            projected(latent, embed, f"{name}.fc1_latent_proj"),
            of_experts(latent),
            projected(embed, latent, f"{name}.fc2_latent_proj"),
        )
        gate = f"{name}.gate"
        bias = (f"{gate}.e_score_correction_bias",)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{gate}.weight",), bias=bias),
            narrowed or of_experts(embed),
            shared(f"{name}.shared_experts", form),
        )

    return build


def _activation(keys: ConfigKeys) -> Activation:
    return activation_of(keys.get("mlp_hidden_act", "relu2"))
