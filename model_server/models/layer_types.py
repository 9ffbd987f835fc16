"""Per-layer attention windows of a decoder: sliding or full."""

from __future__ import annotations

from collections.abc import Callable

from model_server.models.config_keys import ConfigKeys
from sax.errors import CheckpointError

_SLIDES = {"sliding_attention": True, "full_attention": False}


def sliding_layers(keys: ConfigKeys, otherwise: Callable[[int], bool]) -> list[bool]:
    """One flag per layer: `layer_types` of config.json, else `otherwise(index)`.

    Raises CheckpointError for an unsupported layer type or a list of the wrong length.
    """
    layers, given = keys.whole("num_hidden_layers"), keys.get("layer_types")
    if given is None:
        return [otherwise(index) for index in range(layers)]
    if not isinstance(given, list) or len(given) != layers:
        raise CheckpointError(
            f"config.json has num_hidden_layers = {layers} but layer_types = {given!r}; the "
            f"{keys.family} family needs one entry per layer"
        )
    for kind in given:
        if kind not in _SLIDES:
            raise CheckpointError(
                f"config.json has {kind!r} in layer_types; the {keys.family} family supports "
                f"{' and '.join(_SLIDES)}"
            )
    return [_SLIDES[kind] for kind in given]


def windows_of(
    keys: ConfigKeys, window: int | None, otherwise: Callable[[int], bool]
) -> list[int | None]:
    """Window of every layer; None: full attention."""
    return [window if slides else None for slides in sliding_layers(keys, otherwise)]
