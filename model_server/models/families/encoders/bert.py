"""BERT, MiniLM: post-norm encoder, learned positions, every token attends to every other.

Source: Devlin et al. 2019 (arXiv:1810.04805), Wang et al. 2020 (arXiv:2002.10957); names and config
keys are those of Hugging Face's `BertModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.models.families.encoders.bert_layers import Bert, BertConfig, FirstTokenHead
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.embedder import EmbedderFamily, EmbedRecipe, TokenHead, embedding
from model_server.models.layers.layers import Linear
from model_server.models.media.tower_layer import dense
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "bert",
    (
        "architectures",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "position_embedding_type",
        "type_vocab_size",
        "vocab_size",
    ),
    ignored(
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "tie_word_embeddings",
    ),
)
# Heads for other tasks, and a 0, 1, 2, ... buffer that old exporters wrote.
_UNUSED_IN_CLASSES = ("cls.", "lm_head.", "qa_outputs.", "embeddings.position_ids")
_UNUSED = ("pooler.", "classifier.", *_UNUSED_IN_CLASSES)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> EmbedRecipe:
    sizes = BertConfig.from_hf(config, KEYS)
    return encoder_recipe(sizes, values, "bert.", (f"{sizes.prefix}pooler.dense", "classifier"))


def encoder_recipe(
    sizes: BertConfig, values: Mapping[str, Any], submodule: str, head: tuple[str, str]
) -> EmbedRecipe:
    """Return the recipe of an encoder; `head` names the layers of its classifier."""

    def classifier(form: WeightForm, labels: int) -> FirstTokenHead:
        return FirstTokenHead(Bert(sizes, form), sizes.embed, labels, head, form)

    def tagger(form: WeightForm, labels: int) -> TokenHead:
        kernel, bias = dense("classifier")
        axes = (None, "embed")
        head = Linear(labels, sizes.embed, axes, kernel, form=form, bias=bias)
        return TokenHead(Bert(sizes, form), head)

    return EmbedRecipe(
        build=lambda form: Bert(sizes, form),
        build_classifier=classifier,
        build_tagger=tagger,
        embed=sizes.embed,
        vocab=sizes.vocab,
        unused=_prefixed(submodule, _UNUSED),
        unused_in_classes=_prefixed(submodule, _UNUSED_IN_CLASSES),
        **embedding(values, sizes.positions - sizes.first_position),
    )


def _prefixed(submodule: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in ("", submodule) for name in names)


FAMILY = EmbedderFamily("bert", ("bert",), "BERT, MiniLM", configure)
