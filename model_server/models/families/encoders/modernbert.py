"""ModernBERT: an encoder with rotary positions, gated feed-forwards and windows in most layers.

Source: Warner et al. 2024 (arXiv:2412.13663); names and config keys are those of Hugging Face's
`ModernBertModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.encoders.modernbert_layers import (
    NormedEmbedding,
    PooledHead,
    Unchanged,
    attention_shape,
    fused_attention,
    fused_ffw,
    layer_norm,
    ropes_of,
)
from model_server.models.families.ropes import FULL, SLIDING
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.embedder import EmbedderFamily, EmbedRecipe, embedding
from model_server.models.layers.layers import Embedding
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.whole_decoder import WholeDecoder
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "modernbert",
    (
        "attention_bias",
        "classifier_activation",
        "classifier_bias",
        "classifier_pooling",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "local_attention",
        "local_rope_theta",
        "max_position_embeddings",
        "mlp_bias",
        "norm_bias",
        "norm_eps",
        "num_attention_heads",
        "num_hidden_layers",
        "rope_parameters",
        "rope_scaling",
        "vocab_size",
    ),
    {
        # Of training, of its head for masked tokens, and of kernels; `norm_eps` is the epsilon.
        **ignored(
            "decoder_bias",
            "deterministic_flash_attn",
            "embedding_dropout",
            "initializer_cutoff_factor",
            "layer_norm_eps",
            "mlp_dropout",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
            "tie_word_embeddings",
        ),
        "position_embedding_type": one_of("absolute"),
        "rope_theta": one_of(10000.0),  # added where ropes are given by kind of layer
    },
)
_DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
_HEADS = ("head.", "decoder.", "classifier.")
_POOLINGS = ("cls", "mean")  # of its classifiers


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> EmbedRecipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    build, pooling = _encoder(keys), keys.only("classifier_pooling", *_POOLINGS)

    def classifier(form: WeightForm, labels: int) -> PooledHead:
        return PooledHead(build(form), pooling, keys, labels, form)

    return EmbedRecipe(
        build=build,
        build_classifier=classifier,
        embed=keys.whole("hidden_size"),
        vocab=keys.whole("vocab_size"),
        unused=_HEADS,
        unused_in_classes=("decoder.",),
        **embedding(values, keys.whole("max_position_embeddings")),
    )


def _encoder(keys: ConfigKeys) -> Callable[[WeightForm], WholeDecoder]:
    every, window = keys.whole("global_attn_every_n_layers"), keys.whole("local_attention")
    slides = sliding_layers(keys, lambda index: index % every != 0)
    shape = attention_shape(keys)
    ropes = ropes_of(keys, shape.head_dim)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        own = replace(shape, window=window if slides[index] else None)
        return PreNormLayer(
            layer_norm(keys, f"{prefix}.attn_norm") if index else Unchanged(),
            fused_attention(keys, f"{prefix}.attn", own, form),
            layer_norm(keys, f"{prefix}.mlp_norm"),
            fused_ffw(keys, f"{prefix}.mlp", form),
        )

    def build(form: WeightForm) -> WholeDecoder:
        names = ("model.embeddings.tok_embeddings.weight",)
        table = Embedding(keys.whole("vocab_size"), shape.embed, names, form=form)
        decoder = Decoder(
            embedding=NormedEmbedding(table, layer_norm(keys, "model.embeddings.norm")),  # pyright: ignore[reportArgumentType]
            layers=[layer(index, form) for index in range(len(slides))],
            final_norm=layer_norm(keys, "model.final_norm"),
            head=None,
            ropes=[ropes[SLIDING if slide else FULL] for slide in slides],
        )
        return WholeDecoder(decoder, causal=False)

    return build


FAMILY = EmbedderFamily("modernbert", ("modernbert",), "ModernBERT", configure)
