"""Nemotron-H, Nemotron 3: each layer is one of Mamba-2, attention, a feed-forward or experts.

Source: NVIDIA 2025 (arXiv:2504.03624, arXiv:2512.20848); names and config keys are those of Hugging
Face's `NemotronHForCausalLM`. Queries and keys are not rotated; feed-forwards and experts square a
ReLU and are not gated. Multi-token-prediction layers are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.recurrent.nemotron_ffw import plain_ffw, routed_ffw
from model_server.models.families.recurrent.nemotron_keys import (
    ATTENTION,
    DEFAULTS,
    EXPERTS,
    FFW,
    KEYS,
    MAMBA,
    kinds_of,
    mamba_shape,
)
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import Linear, RmsNorm
from model_server.models.layers.pre_norm import FeedForwardLayer, MixerLayer
from model_server.models.layers.state_space import StateSpace
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    kinds, shape, mamba = kinds_of(keys), _attention_shape(keys), mamba_shape(keys)
    build = {FFW: plain_ffw, EXPERTS: routed_ffw}
    ffws: dict[str, Callable[[str, WeightForm], nnx.Module]] = {
        kind: build[kind](keys) for kind in build if kind in kinds
    }

    def norm(name: str) -> RmsNorm:
        return RmsNorm(shape.embed, (f"{name}.weight",), epsilon=mamba.epsilon)

    def head(form: WeightForm) -> Linear:
        vocab, axes = keys.whole("vocab_size"), ("vocab", "embed")
        return Linear(vocab, shape.embed, axes, ("lm_head.weight",), form=form)

    def layer(index: int, form: WeightForm) -> nnx.Module:
        prefix, kind = f"backbone.layers.{index}", kinds[index]
        before, name = norm(f"{prefix}.norm"), f"{prefix}.mixer"
        if kind in ffws:
            return FeedForwardLayer(before, ffws[kind](name, form))
        if kind == MAMBA:
            return MixerLayer(before, StateSpace(mamba, name, form))
        return MixerLayer(before, Attention(shape, AttentionSources.hugging_face(name), form))

    def states(shards: int) -> Any:
        kept = {MAMBA: mamba.states(shards), ATTENTION: None}
        return tuple(kept.get(kind, ()) for kind in kinds)

    made = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[None] * len(kinds),
        layer=layer,
        norm=lambda _: norm("backbone.norm_f"),
        head=head,
        table="backbone.embeddings",
        states=states,
    )
    return replace(made, unused=("mtp.",))


def _attention_shape(keys: ConfigKeys) -> AttentionShape:
    """Return the shape of layers that attend; older files call the size of a head differently."""
    size = keys.whole("head_dim", keys.whole("attention_head_dim", 128))
    return replace(attention_shape(keys), head_dim=size, scale=size**-0.5)


FAMILY = Family(
    "nemotron_h",
    ("nemotron_h",),
    "Nemotron-H, Nemotron Nano 2, Nemotron 3 Nano and Super",
    configure,
    own_types_only=True,
)
