"""A Praxis model is recognised by its variables; missing, unknown and misshapen ones are named."""

from __future__ import annotations

import pytest

from model_server.checkpoints.orbax.dialect import Shape
from model_server.checkpoints.orbax.pax.model import praxis_model
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.tools.golden.pax.cases import CASES, PaxCase

BY_NAME = {case.name: case for case in CASES}
LLAMA, STACKED = BY_NAME["llama"], BY_NAME["llama3_grouped_stacked_bfloat16"]
LAYER, POST = "mdl_vars/params/lm/transformer/x_layers_1/", "self_attention/post"


def shapes_of(case: PaxCase) -> dict[str, Shape]:
    return {f"mdl_vars/params/lm/{p.replace('.', '/')}": s for p, s in case.shapes.items()}


@each_case("case", CASES)
def test_sizes_follow_from_the_shapes(case: PaxCase) -> None:
    sizes = praxis_model(shapes_of(case)).saxml_sizes
    wanted = {key: int(text) for key, text in case.overrides.items() if key != "ROTARY_DIM"}
    assert sizes.items() >= wanted.items()
    assert sizes["VOCAB_SIZE"] == case.vocab


def test_as_many_key_heads_as_heads_are_in_a_combined_projection() -> None:
    assert praxis_model(shapes_of(LLAMA)).saxml_sizes["NUM_KV_HEADS"] == LLAMA.heads


@each_case("case", CASES)
def test_every_missing_variable_is_named(case: PaxCase) -> None:
    for path in shapes_of(case):
        left = {p: s for p, s in shapes_of(case).items() if p != path}
        if "per_dim_scale" in path:  # a switch of Praxis
            continue
        with pytest.raises(CheckpointError) as caught:
            praxis_model(left)
        kinds = ("embedding_lookup", "softmax", "position_emb", "ffn_layer1_gate", "combined_qkv")
        if not any(kind in path for kind in kinds):  # these tell the kinds of models apart
            assert path.replace("/", ".") in caught.value.text


@each_case(
    "path, shape, words",
    [
        (
            *(f"{LAYER}self_attention/relative_bias/wrb", (4, 32)),
            r"x_layers_1\.self_attention\.relative_bias\.wrb",
        ),
        ("mdl_vars/params/vit/w", (4, 32), r"outside the language model: mdl_vars\.params\.vit"),
        *(
            (f"{LAYER}{POST}/w", shape, r"x_layers_1\.self_attention\.post\.w is .*16, 4, 6")
            for shape in [(16, 4, 7), (16, 24), (0, 4, 6), (3, 16, 4, 6)]
        ),
    ],
)
def test_a_variable_that_does_not_fit_is_named(path: str, shape: Shape, words: str) -> None:
    """With the shape that it should have."""
    with pytest.raises(CheckpointError, match=words):
        praxis_model({**shapes_of(LLAMA), path: shape})


def test_layers_that_saxml_does_not_have_are_refused() -> None:
    llama, stacked = shapes_of(LLAMA), shapes_of(STACKED)
    gaps = [
        {path.replace(old, new): shape for path, shape in llama.items()}
        for old, new in [("x_layers_1", "x_layers_2"), ("x_layers_0", "x_layers_9")]
    ]
    for shapes in (*gaps, {**llama, **stacked}):
        with pytest.raises(CheckpointError, match="neither all separate"):
            praxis_model(shapes)
    with pytest.raises(CheckpointError, match="at most 4096"):
        praxis_model({p: (10**12, *s[1:]) if "repeat" in p else s for p, s in stacked.items()})
    with pytest.raises(CheckpointError, match="no model that Saxml serves"):
        praxis_model({p: s for p, s in llama.items() if "softmax" not in p})
