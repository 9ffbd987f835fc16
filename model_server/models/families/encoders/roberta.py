"""RoBERTa, XLM-RoBERTa: BERT whose positions start after the id of padding, without a pooler.

Source: Liu et al. 2019 (arXiv:1907.11692), Conneau et al. 2019 (arXiv:1911.02116); names and config
keys are those of Hugging Face's `RobertaModel` and `XLMRobertaModel`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.families.encoders import bert
from model_server.models.families.encoders.bert_layers import BertConfig
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.embedder import EmbedderFamily, EmbedRecipe

KEYS = KnownKeys("roberta", bert.KEYS.computed, bert.KEYS.harmless)
_PADDING = 1  # id of padding unless the config says another
_BARE = ("RobertaModel", "XLMRobertaModel")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> EmbedRecipe:
    named = (config or {}).get("architectures")
    padding = (config or {}).get("pad_token_id")
    sizes = BertConfig.from_hf(
        config,
        KEYS,
        submodule="roberta",
        bare=next((name for name in _BARE if named == [name]), _BARE[0]),
        first_position=(_PADDING if padding is None else padding) + 1,
    )
    head = ("classifier.dense", "classifier.out_proj")
    return bert.encoder_recipe(sizes, values, "roberta.", head)


FAMILY = EmbedderFamily("roberta", ("roberta", "xlm-roberta"), "RoBERTa, XLM-RoBERTa", configure)
