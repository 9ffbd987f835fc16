"""Feed-forward layers: gated, as in Llama and later, and plain, as before."""

from __future__ import annotations

import jax
from flax import nnx

from model_server.kernels.cpu import rows
from model_server.models.layers.activations import Activation, gate_of, gated
from model_server.models.layers.layers import Branches, Linear, LiveRows, Names, live_of
from model_server.models.weights.weight import WeightForm


class GatedFeedForward(nnx.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    A gate of a kind of its own combines the two as it does.
    """

    def __init__(
        self,
        embed: int,
        ffw: int,
        *,
        gate: Names = (),
        up: Names = (),
        down: Names = (),
        activation: Activation,
        form: WeightForm,
        biases: tuple[Names, Names, Names] | None = None,  # gate, up and down
    ) -> None:
        self.gate_up = Branches(
            [ffw, ffw],
            embed,
            [("ffw", "embed")] * 2,
            [gate, up],
            form=form,
            biases=None if biases is None else biases[:2],
        )
        self.down = Linear(
            embed,
            ffw,
            ("embed", "ffw"),
            down,
            form=form,
            bias=None if biases is None else biases[2],
        )
        self.activation = activation
        self.live: LiveRows = nnx.data(None)

    @classmethod
    def hugging_face(
        cls,
        embed: int,
        ffw: int,
        prefix: str,
        *,
        activation: Activation,
        form: WeightForm,
        biased: bool = False,
    ) -> GatedFeedForward:
        """Build with gate_proj, up_proj and down_proj under `prefix`, the usual naming."""
        names = [f"{prefix}.{part}_proj" for part in ("gate", "up", "down")]
        gate, up, down = ((f"{name}.bias",) for name in names)
        return cls(
            embed,
            ffw,
            gate=(f"{names[0]}.weight",),
            up=(f"{names[1]}.weight",),
            down=(f"{names[2]}.weight",),
            activation=activation,
            form=form,
            biases=(gate, up, down) if biased else None,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        live, gate = live_of(self), gate_of(self.activation)
        if live is not None and gate is not None:
            return self.down(rows.gated(self.gate_up.joined(x), live, gate))
        opening, up = self.gate_up(x)
        return self.down(gated(self.activation, opening, up))


class FeedForward(nnx.Module):
    """down(activation(up(x)))."""

    def __init__(
        self,
        embed: int,
        ffw: int,
        *,
        up: Names = (),
        down: Names = (),
        activation: Activation,
        form: WeightForm,
        biases: tuple[Names, Names] | None = None,  # up and down
    ) -> None:
        up_bias, down_bias = biases or (None, None)
        self.up = Linear(ffw, embed, ("ffw", "embed"), up, form=form, bias=up_bias)
        self.down = Linear(embed, ffw, ("embed", "ffw"), down, form=form, bias=down_bias)
        self.activation = activation
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        live, gate = live_of(self), gate_of(self.activation)
        if live is None or gate is None:
            return self.down(self.activation(self.up(x)))
        bias = self.up.bias[...] if self.up.biased else None
        return self.down(rows.activated(self.up.unbiased(x), bias, live, gate))
