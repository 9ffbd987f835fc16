"""Llama 4's kinds of layers: most rotate and see a chunk, the others see everything unrotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from model_server.models.config_keys import ConfigKeys
from model_server.models.layers.rope import QueryGrowth, Rope, rope_of
from sax.errors import CheckpointError

_CHUNKED, _FULL = "chunked_attention", "full_attention"


class LayerKind(NamedTuple):
    rotates: bool
    chunk: int | None  # tokens that see each other; None: all
    sparse: bool  # has experts


def layer_kinds(keys: ConfigKeys) -> list[LayerKind]:
    """Return one per layer. Raises CheckpointError for lists that do not fit the layers."""
    layers = range(keys.whole("num_hidden_layers"))
    size = keys.whole_or_none("attention_chunk_size")
    interval = keys.whole("no_rope_layer_interval")
    rotates = keys.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in layers]
    _check(keys, "no_rope_layers", rotates, (0, 1))
    chunks = keys.get("layer_types") or [_CHUNKED if turns else _FULL for turns in rotates]
    _check(keys, "layer_types", chunks, (_CHUNKED, _FULL))
    step = keys.whole("interleave_moe_layer_step")
    sparse = keys.get("moe_layers")
    sparse = list(layers)[step - 1 :: step] if sparse is None else sparse
    if not isinstance(sparse, list) or any(type(index) is not int for index in sparse):
        raise CheckpointError(f"config.json has moe_layers = {sparse!r}; give layer indices")
    return [
        LayerKind(rotates[i] == 1, size if chunks[i] == _CHUNKED else None, i in sparse)
        for i in layers
    ]


def _check(keys: ConfigKeys, key: str, given: Any, allowed: tuple[Any, ...]) -> None:
    layers = keys.whole("num_hidden_layers")
    if not isinstance(given, list) or len(given) < layers or not set(given) <= set(allowed):
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the {keys.family} family needs one of "
            f"{' and '.join(map(str, allowed))} for each of {layers} layers"
        )


def ropes_of(keys: ConfigKeys, kinds: Sequence[LayerKind], head_dim: int) -> list[Rope | None]:
    """One per layer; layers that do not rotate may sharpen the attention of late queries."""
    given = keys.all
    if not given.get("rope_parameters") and not given.get("rope_theta"):
        given = given | {"rope_theta": 500000.0}
    rope = rope_of(given, head_dim, interleaved=True)
    return [rope if kind.rotates else _unrotated(keys) for kind in kinds]


def _unrotated(keys: ConfigKeys) -> Rope | None:
    # True, or a number that says no more.
    if not keys.get("attn_temperature_tuning", True):
        return None
    growth = QueryGrowth(keys.number("attn_scale"), keys.whole("floor_scale"), ahead=1)
    return Rope(frequencies=(), query_growth=growth)
