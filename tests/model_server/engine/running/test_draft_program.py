"""Draft heads give the draft tokens of a plain computation over the whole text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from model_server.engine.buckets import Bucket
from model_server.engine.column_layout import ColumnLayout
from model_server.engine.limits import EngineLimits
from model_server.engine.running.draft_program import DraftLayout, HeadProgram
from model_server.engine.running.ops import Beginning
from model_server.engine.step_arrays import StepArrays
from model_server.engine.types import PageGrant, Row, Step
from model_server.kernels import xla
from model_server.kernels.pages import allocate
from model_server.models.config_keys import ConfigKeys
from model_server.models.draft_heads import own_head_recipe
from model_server.models.eagle import eagle_recipe
from model_server.models.families.decoder_recipe import gated_ffw, norm_of, plain_attention
from model_server.models.families.experts.glm4_moe import KEYS
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import appended_head
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import OwnHead, Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.weight import Blueprint, WeightForm
from tests.model_server.engine.running.plain_head import (
    EPSILON,
    NormedEagle,
    PlainEagle,
    PlainPrediction,
    Sizes,
    drafted,
)
from tests.model_server.tiny import PAGE, empty_pages

EMBED, VOCAB, LAYERS, OUTPUTS = 16, 61, 7, 23
SIZES = Sizes(heads=4, kv_heads=2, head_dim=6)
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": EMBED,
    "intermediate_size": 20,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": SIZES.heads,
    "num_key_value_heads": SIZES.kv_heads,
    "head_dim": SIZES.head_dim,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPSILON,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
LIMITS = EngineLimits(
    slots=2,
    pages=8,
    page_size=PAGE,
    max_context=32,
    token_budget=20,
    max_logit_rows=2,
    prefill_block=4,
    max_prefill_blocks=4,
    draft_tokens=4,
)
# Two texts, in slots whose pages are mixed; one step ends within a page, the other at its end.
TEXTS = [[7, 3, 50, 3, 9, 9, 60, 1, 2, 30, 11, 4], [5, 5, 18, 40, 2, 6, 33, 21, 8]]
TABLES = [(5, 2), (1, 4)]
FIRST = [6, 8]  # tokens that a first step takes in


def target() -> Recipe:
    made = make_recipe("llama", CONFIG, {"DTYPE": '"float32"'})
    assert isinstance(made, Recipe)
    return made


def prediction() -> tuple[Recipe, int]:
    """DeepSeek-V3's parts over a Llama layer, and the numbers of a token that it is shown."""
    keys = ConfigKeys({**CONFIG, "num_nextn_predict_layers": 1}, KEYS)
    shape = attention_shape(keys)

    def layer(prefix: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            plain_attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            gated_ffw(keys)(prefix, form),
        )

    head = appended_head(keys, LAYERS, layer, rope_of(keys.all, shape.head_dim))
    assert isinstance(head, OwnHead)
    return own_head_recipe(target(), head), EMBED


def eagle() -> tuple[Recipe, int]:
    config = {**CONFIG, "num_hidden_layers": 1, "draft_vocab_size": OUTPUTS}
    made, shows = eagle_recipe(target(), config, ["embed_tokens.weight"])
    assert shows == (2, 3, 4)
    return made, 3 * EMBED


def deep_eagle() -> tuple[Recipe, int]:
    """A head of two layers in the format of speculators, with norms where they may be."""
    config = {
        **CONFIG,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5",
        "draft_vocab_size": OUTPUTS,
        "norm_before_residual": True,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": [1, 5],
    }
    made, shows = eagle_recipe(target(), config, ["layers.0.hidden_norm.weight"])
    assert shows == (1, 5)
    return made, 2 * EMBED


class Built(NamedTuple):
    """A head with random weights."""

    module: Blueprint
    leaves: tuple[Any, ...]
    pages: Any
    weights: dict[str, np.ndarray]  # by path
    width: int


def built(recipe: Recipe, width: int, seed: int = 0) -> Built:
    module, random = recipe.blueprint(), np.random.default_rng(seed)
    weights = {each.path: random.normal(0, 0.4, each.shape) for each in module.declarations}
    if "offset" in weights:  # rising token numbers
        weights["offset"] = np.cumsum(random.integers(0, 2, OUTPUTS)).astype(float)
    leaves = [jnp.asarray(weights[each.path], jnp.float32) for each in module.declarations]
    pages = empty_pages(recipe, LIMITS.pages, xla.KERNEL)
    return Built(module, tuple(leaves), pages, weights, width)


def program_of(made: Built) -> HeadProgram:
    parts = made.module, made.leaves, made.pages, LIMITS, xla.KERNEL
    return HeadProgram(*parts, vocab=VOCAB, most=4, known=VOCAB, width=made.width)


def served(made: Built, shown: list[np.ndarray], counts: list[int]) -> list[list[int]]:
    """The draft tokens behind both texts, of which two steps take in all but the last token."""
    bucket, arrays, pages = Bucket(2, 4), StepArrays(LIMITS), made.pages
    layout, program = ColumnLayout(bucket, LIMITS), program_of(made)
    follow = program.lower(bucket).compile()
    grants = tuple(PageGrant(slot, 0, table) for slot, table in enumerate(TABLES))
    for number, ends in enumerate((FIRST, [len(text) - 1 for text in TEXTS])):
        rows, hidden = list[Row](), np.zeros((layout.tokens, made.width), np.float32)
        at = bucket.decodes
        for slot, (text, end) in enumerate(zip(TEXTS, ends, strict=True)):
            start = FIRST[slot] if number else 0
            if start == end:
                continue
            rows.append(Row(slot, slot, start, tuple(text[start:end]), yields=False))
            hidden[at : at + end - start] = shown[slot][start:end]
            at += -(-(end - start) // LIMITS.prefill_block) * LIMITS.prefill_block
        vector, _ = arrays.pack(Step(number, tuple(rows), grants if not number else ()), layout)
        pages = follow(made.leaves, pages, vector, jnp.zeros(3, jnp.int32), hidden)
    beginnings = [
        Beginning(slot, len(text) - 1, text[-1], counts[slot]) for slot, text in enumerate(TEXTS)
    ]
    asked = DraftLayout(2, LIMITS.pages_per_sequence)
    vector = asked.packed(beginnings, arrays.tables([0, 1]), max(counts))
    drafts = program.lower_draft_tokens(2).compile()
    found = np.asarray(drafts(made.leaves, pages, vector)[0]).T
    return [row[:count].tolist() for row, count in zip(found, counts, strict=True)]


def check(made: Built, plain: Callable[..., PlainPrediction], counts: list[int]) -> None:
    random = np.random.default_rng(1)
    shown = [random.normal(0, 1, (len(text) - 1, made.width)) for text in TEXTS]
    wanted = [
        drafted(plain(made.weights, SIZES), text, each, count)
        for text, each, count in zip(TEXTS, shown, counts, strict=True)
    ]
    assert served(made, shown, counts) == wanted
    assert len({token for each in wanted for token in each}) > 2, "they would say nothing"


def test_prediction_layers_draft_as_a_plain_computation_does() -> None:
    """Both texts cross the end of a page: one within a step, one between draft tokens."""
    check(built(*prediction()), PlainPrediction, [4, 3])


def test_an_eagle_head_drafts_as_a_plain_computation_does_and_numbers_tokens_its_own_way() -> None:
    check(built(*eagle()), PlainEagle, [3, 4])


def test_a_head_of_several_layers_drafts_as_a_plain_computation_does() -> None:
    check(built(*deep_eagle(), seed=3), NormedEagle, [4, 3])


def test_a_head_keeps_hidden_states_beside_the_keys_and_values_of_one_layer() -> None:
    recipe, _ = prediction()
    layer, kept = empty_pages(recipe, 8, xla.KERNEL)
    (states,) = tuple[Any](kept)
    assert states.shape == (9, PAGE, EMBED)
    assert layer.keys.shape[:2] == (9, SIZES.kv_heads)
    assert recipe.shows is None


def test_hidden_states_beside_bfloat16_pages_are_written_as_bits_and_read_as_numbers() -> None:
    """XLA on CPU would convert all pages of bfloat16 to write a few tokens."""
    recipe, width = prediction()
    pages = allocate(recipe.cache(1), 8, PAGE, jnp.dtype("bfloat16"), shapes=xla.KERNEL.shapes)
    assert pages[-1][0].dtype == jnp.uint16
    kept = (jnp.zeros((9, PAGE, EMBED), jnp.uint16),)
    random = np.random.default_rng(2)
    shown = [np.round(random.normal(0, 9, (len(text) - 1, width))) for text in TEXTS]  # as bfloat16
    exact, bits = built(recipe, width), built(recipe, width)
    bits = bits._replace(pages=(bits.pages[0], kept))
    assert served(bits, shown, [4, 3]) == served(exact, shown, [4, 3])
