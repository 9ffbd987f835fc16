"""Config keys of decoders that mix Mamba-2 layers with others, as several families write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import ignored
from model_server.models.layers.state_space import StateSpaceShape
from sax.errors import CheckpointError

MAMBA = (
    "mamba_conv_bias",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "mamba_proj_bias",
    "time_step_limit",
)
MAMBA_OFF = ignored("mamba_chunk_size", "num_logits_to_keep")
MAMBA_DEFAULTS = {
    "mamba_d_conv": 4,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
}


def mamba_shape(keys: ConfigKeys, epsilon: float, inner: int | None = None) -> StateSpaceShape:
    """Return the sizes of the Mamba layers. Raises CheckpointError.

    inner: width of all heads; None: as `mamba_expand` says.
    """
    keys.only("hidden_act", "silu")  # of the convolutions as well
    embed, heads = keys.whole("hidden_size"), keys.whole("mamba_n_heads")
    source = "hidden_size * mamba_expand" if inner is None else "mamba_d_ssm"
    inner = int(keys.number("mamba_expand") * embed) if inner is None else inner
    groups = keys.whole("mamba_n_groups")
    given = keys.get("mamba_d_head", "auto")
    size = inner // heads if given == "auto" else keys.whole("mamba_d_head")
    if heads * size != inner or heads % groups:
        raise CheckpointError(
            f"config.json has mamba_n_heads = {heads} of mamba_d_head = {given!r} and "
            f"mamba_n_groups = {groups}; they must make up {source} = {inner}, in equal groups"
        )
    least, most = step_limits(keys)
    return StateSpaceShape(
        embed=embed,
        heads=heads,
        head_dim=size,
        groups=groups,
        state=keys.whole("mamba_d_state"),
        width=keys.whole("mamba_d_conv"),
        epsilon=epsilon,
        norm_groups=groups,
        biased=keys.flag("mamba_proj_bias"),
        conv_biased=keys.flag("mamba_conv_bias", True),
        least_step=least,
        most_step=most,
    )


def step_limits(keys: ConfigKeys) -> tuple[float, float]:
    """Return two numbers; Hugging Face writes infinity as `{"__float__": "Infinity"}`."""
    given: Any = keys.get("time_step_limit", [0.0, float("inf")])
    try:
        least, most = (
            float(each["__float__"] if isinstance(each, Mapping) else each) for each in given
        )
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"config.json has time_step_limit = {given!r}; give the least and the most"
        ) from None
    return least, most
