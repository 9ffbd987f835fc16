"""The projector of LLaVA and its successors: two matrices from a tower's vectors to a model's.

Source: Liu et al. 2023 (arXiv:2310.03744).
"""

from __future__ import annotations

import jax
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.layers import Linear
from model_server.models.weights.weight import WeightForm

NAME = "multi_modal_projector"
PROJECTOR_KEYS = ("multimodal_projector_bias", "projector_hidden_act")


class Projector(nnx.Module):
    """Maps f32[R, inputs] to f32[R, embed]."""

    def __init__(
        self, keys: ConfigKeys, embed: int, inputs: int, form: WeightForm, *, biased: bool
    ) -> None:
        """biased: if config.json does not say."""
        biased = keys.flag("multimodal_projector_bias", biased)
        names = [f"{NAME}.linear_{number}" for number in (1, 2)]
        kernels = [(f"{name}.weight",) for name in names]
        biases = [(f"{name}.bias",) if biased else None for name in names]
        self.first = Linear(embed, inputs, ("ffw", None), kernels[0], form=form, bias=biases[0])
        self.second = Linear(embed, embed, ("embed", "ffw"), kernels[1], form=form, bias=biases[1])
        self.activation = activation_of(keys.get("projector_hidden_act", "gelu"))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(self.activation(self.first(x)))
