"""Names translate both ways, and are those of the gguf package."""

import re

import numpy as np
import pytest
from gguf.constants import MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.gguf.architecture import (
    GgufArchitecture,
    fused,
    halves_of_heads,
    heads_of_thirds,
    inverse,
    rotated,
)
from model_server.checkpoints.gguf.architectures import ARCHITECTURES
from sax.errors import CheckpointError
from tests.each_case import each_case

LLAMA = ARCHITECTURES["llama"]


WRITTEN = [each for each in ARCHITECTURES.values() if each.more_metadata]


def gguf_names(architecture: GgufArchitecture) -> list[str]:
    layer = [f"blk.17.{stem}" for stem in architecture.layer_tensors]
    stems = (*architecture.tensors, *layer)
    return [n if n.endswith((".bias", ".weight")) else f"{n}.weight" for n in stems]


@each_case("architecture", WRITTEN)
def test_names_translate_both_ways(architecture: GgufArchitecture) -> None:
    for name in gguf_names(architecture):
        there = architecture.from_gguf(name)
        assert there is not None
        back = architecture.from_hf(there.hf_name.replace("{e}", "11"))
        assert back is not None
        assert (back.gguf_name, back.hf_name, back.place) == (name, there.hf_name, there.place)
        assert back.expert == (11 if "{e}" in there.hf_name else None)


@each_case("architecture", ARCHITECTURES.values())
def test_biases_go_with_their_weights(architecture: GgufArchitecture) -> None:
    for stem, place in architecture.layer_tensors.items():
        if not stem.endswith((".bias", ".weight")) and not place.bare:
            named = architecture.from_gguf(f"blk.0.{stem}.bias")
            assert named is not None
            assert named.hf_name == f"{architecture.layers}.0.{place.name}.bias"


@each_case("architecture", WRITTEN)
def test_the_gguf_package_gives_the_same_names(architecture: GgufArchitecture) -> None:
    """Its table serves all architectures at once and is read here the way converters read it."""
    kind = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture.name)
    theirs = get_tensor_name_map(kind, 20)
    for name in gguf_names(architecture):
        named = architecture.from_gguf(name)
        assert named is not None
        stem, part = named.hf_name.replace(".{e}", "").rsplit(".", 1)
        if part == "e_score_correction_bias":  # converters split it the other way before asking
            stem, part = f"{stem}.e_score_correction", "bias"
        if part == "sinks":  # converters add that it is a weight
            stem, part = f"{stem}.sinks", "weight"
        assert theirs.get_name(stem) == name.removesuffix(f".{part}"), named.hf_name


@each_case(
    "name",
    [
        "",
        "weight",
        "nothing.weight",
        "blk.0.weight",
        "blk.x.attn_q.weight",
        "blk.01.attn_q.weight",
        "blk.0.attn_q.scale",
        "blk.0.exp_probs_b.bias",
    ],
)
def test_names_nobody_gave_are_none(name: str) -> None:
    assert LLAMA.from_gguf(name) is None
    assert LLAMA.from_hf(name) is None


def test_a_prefix_that_some_checkpoints_have_makes_no_difference() -> None:
    for bare, prefixed, family in [
        ("h.1.ln_1.bias", "transformer.h.1.ln_1.bias", "gpt2"),
        ("encoder.layer.1.output.dense.bias", "bert.encoder.layer.1.output.dense.bias", "bert"),
    ]:
        one, other = ARCHITECTURES[family].from_hf(bare), ARCHITECTURES[family].from_hf(prefixed)
        assert one is not None
        assert other is not None
        assert one.gguf_name == other.gguf_name


def test_masks_frequencies_and_layers_for_training_are_dropped() -> None:
    config = {"num_hidden_layers": 2, "n_layer": 2}
    for family, name in [
        ("gpt2", "h.0.attn.bias"),
        ("gptj", "transformer.h.0.attn.masked_bias"),
        ("gptneox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("llama", "model.layers.1.self_attn.rotary_emb.inv_freq"),
        ("bert", "bert.pooler.dense.weight"),
        ("deepseek2", "model.layers.2.eh_proj.weight"),
    ]:
        assert ARCHITECTURES[family].drops(name, config), name
    assert not ARCHITECTURES["gpt2"].drops("h.0.attn.c_attn.bias", config)
    assert not ARCHITECTURES["llama"].drops("model.layers.2.self_attn.q_proj.weight", config)


def test_what_a_layer_needs_depends_on_the_configuration() -> None:
    def needed(**config: int) -> set[str]:
        names = LLAMA.needed({"num_hidden_layers": 1, **config})
        return {name for name in names if re.fullmatch(r"blk\.0\.ffn_(up|gate_inp).*", name)}

    assert needed() == {"blk.0.ffn_up.weight"}
    experts = {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight"}
    assert needed(num_local_experts=4) == experts


def test_halves_of_a_head_are_neighbours_in_the_file() -> None:
    """Two heads of six rows: row 1 of the first half is the file's third."""
    order = halves_of_heads(12, 2)
    assert order.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_all_queries_come_first_in_the_file() -> None:
    """Two heads of one row each: q q k k v v in the file, q k v q k v here."""
    assert heads_of_thirds(6, 2).tolist() == [0, 2, 4, 1, 3, 5]


@given(st.integers(1, 5), st.integers(1, 6))
def test_an_order_and_its_inverse_cancel(heads: int, half: int) -> None:
    for order in (
        halves_of_heads(heads * half * 2, heads),
        heads_of_thirds(heads * half * 3, heads),
    ):
        values = np.arange(len(order)) * 7
        np.testing.assert_array_equal(values[inverse(order)][order], values)


def test_rows_that_are_not_the_heads_are_refused() -> None:
    config = {"num_attention_heads": 4, "hidden_size": 32}
    assert len(rotated("num_attention_heads").for_tensor(32, config, "q")) == 32
    assert len(fused("num_attention_heads").for_tensor(96, config, "qkv")) == 96
    with pytest.raises(CheckpointError, match="tensor q has 31 rows; its heads need 32"):
        rotated("num_attention_heads").for_tensor(31, config, "q")
