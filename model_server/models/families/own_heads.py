"""Draft layers of checkpoints, as families name their parts: one layer over a projection.

Sources: the names of DeepSeek-V3 (arXiv:2412.19437, section 2.2) for layers behind the last one,
and of Qwen3-Next for those apart, under `mtp.`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import embedding_of, head_of, rms_norms
from model_server.models.layers.draft_head import PredictionHead
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.rope import Rope
from model_server.models.recipe import OwnHead
from model_server.models.weights.weight import WeightForm

BuildLayer = Callable[[str, WeightForm], nnx.Module]  # str: prefix of its names


def appended_head(keys: ConfigKeys, layers: int, layer: BuildLayer, rope: Rope) -> OwnHead | None:
    """Return the layer behind the last of `layers`, if config.json counts one or more."""
    if not keys.whole("num_nextn_predict_layers", 0, least=0):
        return None
    prefix = f"model.layers.{layers}"
    norm = rms_norms(keys)

    def build(form: WeightForm) -> PredictionHead:
        form = replace(form, adapters=None)
        return PredictionHead(
            embedding=embedding_of(keys, form),
            token_norm=norm(f"{prefix}.enorm"),
            hidden_norm=norm(f"{prefix}.hnorm"),
            projection=projection(keys, f"{prefix}.eh_proj", form),
            layers=[layer(prefix, form)],
            ropes=[rope],
            final_norm=norm(f"{prefix}.shared_head.norm"),
            head=head_of(keys, form),
        )

    copies = f"{prefix}.embed_tokens.", f"{prefix}.shared_head.head."
    return OwnHead(build, f"{prefix}.", copies)


def head_apart(
    keys: ConfigKeys,
    layer: BuildLayer,
    rope: Rope | None,
    *,
    names: tuple[str, str, str, str] = (
        "pre_fc_norm_embedding",
        "pre_fc_norm_hidden",
        "fc",
        "norm",
    ),
    norm: Callable[[str], nnx.Module],
    embedding: Callable[[WeightForm], Embedding] | None = None,
    head: Callable[[WeightForm], Linear | None] | None = None,
) -> OwnHead:
    """Return the layers under `mtp.`.

    names: of both norms, of the projection and of the last norm, below it. embedding, head: None:
    the usual ones.
    """
    token, hidden, joined, last = (f"mtp.{name}" for name in names)

    def build(form: WeightForm) -> PredictionHead:
        form = replace(form, adapters=None)
        return PredictionHead(
            embedding=embedding(form) if embedding else embedding_of(keys, form),
            token_norm=norm(token),
            hidden_norm=norm(hidden),
            projection=projection(keys, joined, form),
            layers=[layer("mtp.layers.0", form)],
            ropes=[rope],
            final_norm=norm(last),
            head=head(form) if head else head_of(keys, form),
        )

    return OwnHead(build, "mtp.")


def projection(keys: ConfigKeys, name: str, form: WeightForm) -> Linear:
    """Return what maps a token and the hidden state before it, side by side, to one vector."""
    embed = keys.whole("hidden_size")
    return Linear(embed, 2 * embed, ("embed", None), (f"{name}.weight",), form=form)
