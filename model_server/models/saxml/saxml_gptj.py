"""Saxml's GPT-J classes, as MLPerf measured them.

Source: `saxml.server.pax.lm.params.gptj`. Each loads a GPT-J checkpoint and
answers with a beam search of width 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import gptj
from model_server.models.recipe import ModelClass
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    saxml_class,
    sizes,
)


def _config(values: Values, context: int) -> dict[str, Any]:
    return {
        "model_type": "gptj",
        "n_layer": values["NUM_LAYERS"],
        "n_embd": values["MODEL_DIMS"],
        "n_inner": values["HIDDEN_DIMS"],
        "n_head": values["NUM_HEADS"],
        "head_dim": values["DIMS_PER_HEAD"],
        "vocab_size": values["VOCAB_SIZE"],
        "rotary_dim": values["ROTARY_DIM"],
        "n_positions": values["MAX_POSITION_EMBEDDINGS"],
    }


def _sizes(keys: ConfigKeys) -> Values:
    embed, heads = keys.whole("n_embd"), keys.whole("n_head")
    return {
        "NUM_LAYERS": keys.whole("n_layer"),
        "MODEL_DIMS": embed,
        "HIDDEN_DIMS": keys.whole("n_inner", 4 * embed),
        "NUM_HEADS": heads,
        "DIMS_PER_HEAD": keys.whole("head_dim", embed // heads),
        "VOCAB_SIZE": keys.whole("vocab_size"),
        "ROTARY_DIM": keys.whole("rotary_dim", 64),
        "MAX_POSITION_EMBEDDINGS": keys.whole("n_positions", 2048),
    }


_ARCHITECTURE = SaxmlArchitecture(
    configure=gptj.configure, config=_config, keys=gptj.KEYS, sizes=_sizes
)
_6B: Values = {
    # 50,400 in the published checkpoint; the tokenizer has 50,257 entries.
    **sizes(28, 4096, 16384, 16, head_dim=256, vocab=50401),
    **mesh(1),
    "ROTARY_DIM": 64,
    "MAX_POSITION_EMBEDDINGS": 2048,
    "DTYPE": "float32",
    "INPUT_SEQ_LEN": 1919,
    "MAX_DECODE_STEPS": 128,
    "NUM_SAMPLES": 1,
    "TEMPERATURE": 0.5,  # if USE_BEAM_SEARCH is overridden, as all that is said of samples
    "TOP_P": 0.95,
    "USE_BEAM_SEARCH": True,
    "MIN_DECODE_STEPS": 30,
    "LENGTH_NORM_ALPHA": 0.5,
    "TOKENS_PER_BEAM": 4,
}
_6B_IN_BATCHES = {**_6B, **mesh(4), "DTYPE": "bfloat16", "BATCH_SIZE": 32}
_CLASSES: Mapping[str, Values] = {
    "GPTJ": _6B,
    "GPTJ4BF16BS32": _6B_IN_BATCHES,
    "GPTJ4TokenizedBF16BS32": {
        **_6B_IN_BATCHES,
        "TOKENIZED_INPUT": True,
        "TOKENIZED_OUTPUT": True,
    },
}


def model_classes() -> list[ModelClass]:
    return [saxml_class("gptj", name, _ARCHITECTURE, values) for name, values in _CLASSES.items()]
