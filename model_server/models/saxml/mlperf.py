"""Saxml's classes of MLPerf's models: GPT-J as it was measured, and GPT-3's sizes (C4SpmdGpt3).

Source: `saxml.server.pax.lm.params.gptj`: each loads a GPT-J checkpoint. C4SpmdGpt3AdamOrgHP
(`saxml.server.pax.lm.params.c4`, `paxml.tasks.lm.params.c4`) has learned positions, biases
everywhere but in the logits and no soft caps; Pax checkpoints are loaded, and checkpoint "None"
fills it with random weights. All answer with a beam search of width 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families import gptj
from model_server.models.recipe import ModelClass, Recipe, head_cache, serving
from model_server.models.saxml.lm_cloud import PraxisDecoder
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    pax_keys,
    saxml_class,
    sizes,
)
from sax.errors import InvalidRequest

_TABLE = "TRAINABLE_PE_MAX_SEQ_LEN"


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


def _configure_gpt3(config: Values | None, values: Values) -> Recipe:
    """Build a recipe from the class's sizes; its position table bounds the context."""
    assert config is not None, "a Saxml class brings its own sizes"
    heads, head_dim = config["NUM_HEADS"], config["DIMS_PER_HEAD"]
    if type(config[_TABLE]) is not int or config[_TABLE] < 1:
        raise InvalidRequest(f"{_TABLE} must be at least 1", param=f"overrides.{_TABLE}")
    decoder = PraxisDecoder(
        layers=config["NUM_LAYERS"],
        embed=config["MODEL_DIMS"],
        ffw=config["HIDDEN_DIMS"],
        heads=heads,
        head_dim=head_dim,
        vocab=config["VOCAB_SIZE"],
        biased=True,
        biased_head=False,
        epsilon=1e-5,
        positions=config[_TABLE],
    )
    return Recipe(
        build=decoder.build,
        cache=head_cache(layers=decoder.layers, heads=heads, kv_heads=heads, head_dim=head_dim),
        embed=decoder.embed,
        vocab=decoder.vocab,
        **serving(values, config[_TABLE]),
    )


_GPT3_ARCHITECTURE = SaxmlArchitecture(configure=_configure_gpt3, keys=pax_keys("saxml_c4"))
_GPT3: Values = {
    **sizes(96, 12288, 49152, 96, vocab=50257),
    **mesh(64),
    _TABLE: 16384,
    "BATCH_SIZE": 4,
    "NUM_SAMPLES": 1,
    "INPUT_SEQ_LEN": 2048,
    "MAX_DECODE_STEPS": 128,
    "USE_BEAM_SEARCH": True,
}


def model_classes() -> list[ModelClass]:
    gptj = [saxml_class("gptj", name, _ARCHITECTURE, values) for name, values in _CLASSES.items()]
    return [*gptj, saxml_class("c4", "C4SpmdGpt3AdamOrgHP", _GPT3_ARCHITECTURE, _GPT3)]
