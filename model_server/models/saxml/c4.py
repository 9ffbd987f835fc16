"""C4SpmdGpt3AdamOrgHP: the size and architecture of GPT-3, as MLPerf trained it.

Source: `paxml.tasks.lm.params.c4` and `saxml.server.pax.lm.params.c4`: learned positions, biases
everywhere but in the logits, no soft caps. Answers come from a beam search of width 4. Pax
checkpoints are loaded; checkpoint "None" fills it with random weights.
"""

from __future__ import annotations

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
from sax.errors import InvalidRequest

_TABLE = "TRAINABLE_PE_MAX_SEQ_LEN"


def configure(config: Values | None, values: Values) -> Recipe:
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


_ARCHITECTURE = SaxmlArchitecture(configure=configure, keys=pax_keys("saxml_c4"))
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
    return [saxml_class("c4", "C4SpmdGpt3AdamOrgHP", _ARCHITECTURE, _GPT3)]
