"""Draft layers of checkpoints, as families name their parts: one layer over a projection.

Sources: DeepSeek-AI 2024 (arXiv:2412.19437, section 2.2) for layers behind the last one, Qwen3-Next
for those under `mtp.`, Xiaomi 2025 (arXiv:2505.07608) for those under `model.mtp_layers.`, and
Baidu's FastDeploy for those under `model.mtp_block.`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    BuildNorm,
    embedding_of,
    head_of,
    norm_of,
    rms_norms,
)
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.draft_head import PredictionHead
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope
from model_server.models.recipe import OwnHead
from model_server.models.weights.weight import WeightForm

BuildLayer = Callable[[str, WeightForm], nnx.Module]  # str: prefix of its names


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNames:
    """Names of a head's parts, without .weight."""

    prefix: str  # of all
    layer: str
    token_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    hidden_first: bool = False  # of what is projected
    copies: tuple[str, ...] = ()  # prefixes of tensors that repeat the model's

    @classmethod
    def appended(cls, layers: int, final_norm: str = "shared_head.norm") -> HeadNames:
        """Names of the layer behind the last of `layers`, as DeepSeek-V3 gives them."""
        prefix = f"model.layers.{layers}"
        return cls(
            prefix=f"{prefix}.",
            layer=prefix,
            token_norm=f"{prefix}.enorm",
            hidden_norm=f"{prefix}.hnorm",
            projection=f"{prefix}.eh_proj",
            final_norm=f"{prefix}.{final_norm}",
            copies=(f"{prefix}.embed_tokens.", f"{prefix}.shared_head.head."),
        )


QWEN = HeadNames(
    prefix="mtp.",
    layer="mtp.layers.0",
    token_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    final_norm="mtp.norm",
)
NEMOTRON = HeadNames(
    prefix="mtp.",
    layer="mtp.layers",
    token_norm="mtp.layers.0.enorm",
    hidden_norm="mtp.layers.0.hnorm",
    projection="mtp.layers.0.eh_proj",
    final_norm="mtp.layers.1.final_layernorm",
)
_MIMO = "model.mtp_layers.0"
MIMO = HeadNames(
    prefix=f"{_MIMO}.",
    layer=_MIMO,
    token_norm=f"{_MIMO}.token_layernorm",
    hidden_norm=f"{_MIMO}.hidden_layernorm",
    projection=f"{_MIMO}.input_proj",
    final_norm=f"{_MIMO}.final_layernorm",
    hidden_first=True,
)
ERNIE = HeadNames(
    prefix="model.mtp_",
    layer="model.mtp_block.0",
    token_norm="model.mtp_emb_norm.0",
    hidden_norm="model.mtp_hidden_norm.0",
    projection="model.mtp_linear_proj.0",
    final_norm="model.norm",  # that of the model
)


def own_head(
    keys: ConfigKeys,
    names: HeadNames,
    layer: BuildLayer,
    rope: Rope | None,
    *,
    norm: BuildNorm | None = None,
    embedding: Callable[[WeightForm], Embedding] | None = None,
    head: Callable[[WeightForm], Linear | None] | None = None,
) -> OwnHead:
    """Return the layer of these names; norm, embedding, head: None: the usual ones."""
    made_norm = norm or rms_norms(keys)
    embed = keys.whole("hidden_size")

    def build(form: WeightForm) -> PredictionHead:
        form = replace(form, adapters=None)
        source = (f"{names.projection}.weight",)
        return PredictionHead(
            embedding=embedding(form) if embedding else embedding_of(keys, form),
            token_norm=made_norm(names.token_norm),
            hidden_norm=made_norm(names.hidden_norm),
            projection=Linear(embed, 2 * embed, ("embed", None), source, form=form),
            hidden_first=names.hidden_first,
            layers=[layer(names.layer, form)],
            ropes=[rope],
            final_norm=made_norm(names.final_norm),
            head=head(form) if head else head_of(keys, form),
        )

    return OwnHead(build, names.prefix, names.copies)


def appended_head(
    keys: ConfigKeys, layers: int, layer: BuildLayer, rope: Rope | None
) -> OwnHead | None:
    """Return the layer behind the last of `layers`, if config.json counts one or more."""
    return counted_head(keys, HeadNames.appended(layers), layer, rope)


def counted_head(
    keys: ConfigKeys, names: HeadNames, layer: BuildLayer, rope: Rope | None, *, tied: bool = False
) -> OwnHead | None:
    """Return the layer of these names, if config.json counts one or more.

    tied: whether the output layer is the embedding if config.json does not say.
    """
    if not keys.whole("num_nextn_predict_layers", 0, least=0):
        return None
    return own_head(keys, names, layer, rope, head=lambda form: head_of(keys, form, tied=tied))


def drafting_layer(
    keys: ConfigKeys, attention: BuildAttention, shape: AttentionShape, ffw: BuildFfw
) -> BuildLayer:
    """Builder of a Llama-style layer that drafts."""

    def build(prefix: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
        )

    return build
