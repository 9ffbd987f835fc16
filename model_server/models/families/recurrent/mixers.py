"""Config keys of decoders that mix Mamba-2 layers with others, as several families write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import ignored
from model_server.models.layers.state_space import StateSpaceShape
from sax.errors import CheckpointError

_Kind = TypeVar("_Kind")

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
    embed, heads = keys.whole("hidden_size"), keys.whole("mamba_n_heads")
    inner = int(keys.number("mamba_expand") * embed) if inner is None else inner
    groups = keys.whole("mamba_n_groups")
    given = keys.get("mamba_d_head", "auto")
    size = inner // heads if given == "auto" else keys.whole("mamba_d_head")
    if heads * size != inner or heads % groups:
        raise CheckpointError(
            f"config.json has mamba_n_heads = {heads} of mamba_d_head = {given!r} and "
            f"mamba_n_groups = {groups}; they must make up the inner width of {inner}, in equal "
            "groups"
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


def kinds_of_layers(
    keys: ConfigKeys, kinds: Mapping[str, _Kind], key: str = "layer_types"
) -> list[_Kind] | None:
    """Translate the config's name of each layer's kind; None if it names none.

    Raises CheckpointError for an unknown name or a list of the wrong length.
    """
    given = keys.get(key)
    if given is None:
        return None
    layers = keys.whole_or_none("num_hidden_layers")  # the list says it in some files
    known = isinstance(given, list) and all(type(name) is str and name in kinds for name in given)
    if not given or not known or layers not in (None, len(given)):
        *names, last = kinds
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the {keys.family} family needs one of "
            f"{', '.join(names)} and {last} for each of {layers or 'its'} layers"
        )
    return [kinds[name] for name in given]
