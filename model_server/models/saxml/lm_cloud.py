"""The LmCloudSpmd models of the Saxml tutorials: a plain decoder.

Source: the recipe of `saxml.server.pax.lm.params.lm_cloud`: sinusoidal positions, no biases in
attention, attention logits soft-capped at 50 and output logits at 30. Pax checkpoints are loaded;
checkpoint "None" fills them with random weights.
"""

from __future__ import annotations

from collections.abc import Mapping

from model_server.models.recipe import ModelClass, Recipe, head_cache, serving
from model_server.models.saxml.praxis import PraxisDecoder
from model_server.models.saxml.saxml_class import (
    SaxmlArchitecture,
    Values,
    mesh,
    pax_keys,
    saxml_class,
    sizes,
)


def configure(config: Values | None, values: Values) -> Recipe:
    assert config is not None, "a Saxml class brings its own sizes"
    embed, heads, head_dim = config["MODEL_DIMS"], config["NUM_HEADS"], config["DIMS_PER_HEAD"]
    decoder = PraxisDecoder(
        layers=config["NUM_LAYERS"],
        embed=embed,
        ffw=config["HIDDEN_DIMS"],
        heads=heads,
        head_dim=head_dim,
        vocab=config["VOCAB_SIZE"],
        biased=False,
        biased_head=True,
        epsilon=1e-6,
        positions=None,
        embedding_scale=embed**0.5,
        attention_softcap=50.0,
        logits_softcap=30.0,
    )
    return Recipe(
        build=decoder.build,
        cache=head_cache(layers=decoder.layers, heads=heads, kv_heads=heads, head_dim=head_dim),
        embed=embed,
        vocab=decoder.vocab,
        **serving(values, config["CONTEXT"]),
    )


_ARCHITECTURE = SaxmlArchitecture(configure=configure, keys=pax_keys("saxml_lm_cloud"))
# Saxml feeds the 2B models the 1,000 pieces of a test vocabulary; with random weights here they
# read bytes.
_2B = sizes(18, 3072, 12288, 24)
_175B = {
    **sizes(96, 12288, 49152, 96),
    "QUANTIZE": "int8",
    "INPUT_SEQ_LEN": 128,
    "MAX_DECODE_STEPS": 128,
    "NUM_SAMPLES": 1,
    "TEMPERATURE": 0.5,
    "TOP_P": 0.95,
}
_CLASSES: Mapping[str, Values] = {
    "LmCloudSpmd2B": {**_2B, **mesh(4)},
    "LmCloudSpmd2BTest": {**_2B, **mesh(1)},
    "LmCloudSpmd2B4Test": {**_2B, **mesh(4)},
    "LmCloudSpmd2B8Test": {**_2B, **mesh(8)},
    "LmCloudSpmd2B16Test": {**_2B, **mesh(16)},
    "LmCloudSpmd2B32Test": {**_2B, **mesh(32)},
    "LmCloudSpmd175B": {**_175B, **mesh(16)},
    "LmCloudSpmd175BTest": {**_175B, **mesh(16)},
    "LmCloudSpmd175B32Test": {**_175B, **mesh(32)},
    "LmCloudSpmd175B64Test": {**_175B, **mesh(64)},
    "LmCloudSpmd175B128Test": {**_175B, **mesh(128)},
    "LmCloudSpmd175B256Test": {**_175B, **mesh(256)},
}


def model_classes() -> list[ModelClass]:
    return [
        saxml_class("lm_cloud", name, _ARCHITECTURE, values) for name, values in _CLASSES.items()
    ]
