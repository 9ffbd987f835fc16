"""Tables of a dialect are applied as written; transformers' Flax models come out as published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.orbax.dialect import Dialect, Part, Rule, find_dialect, translate
from model_server.checkpoints.orbax.view import OrbaxView
from sax.errors import CheckpointError
from tests.model_server.checkpoints.orbax_trees import flax_llama, save, with_config
from tests.model_server.checkpoints.tiny_folder import CONFIG, random_weights


def _dialect(*rules: Rule, ignored: tuple[str, ...] = ()) -> Dialect:
    def same(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Rule, ...]:
        return rules

    return Dialect("test", r"mark/.*", same, ignored)


def test_one_array_can_hold_a_tensor_per_layer_and_expert() -> None:
    part = Part("l{layer}.e{expert}", ((3,), (2,)), each=(("expert", 0), ("layer", 1)))
    views = translate(_dialect(Rule("w", (part,))), {}, {"w": (2, 3, 4, 5)})
    assert sorted(views) == [f"l{layer}.e{e}" for layer in range(3) for e in range(2)]
    assert views["l2.e1"] == OrbaxView("w", ((3,), (2,)), taken=((0, 1), (1, 2)))


def test_the_first_rule_that_fits_the_whole_path_counts() -> None:
    rules = (Rule("a", (Part("wrong", ((0,),)),)), Rule(r"(?P<x>.+)", (Part("{x}", ((0,),)),)))
    views = translate(_dialect(*rules), {}, {"a/b": (1,), "c": (1,)})
    assert list(views) == ["a.b", "c"]


def test_an_array_without_a_rule_keeps_its_path() -> None:
    assert translate(_dialect(), {}, {"some/more": (2, 3)}) == {
        "some.more": OrbaxView("some/more", ((0,), (1,)))
    }


def test_what_another_model_has_is_left_out() -> None:
    assert translate(_dialect(ignored=(r"eyes/.*",)), {}, {"eyes/w": (1,)}) == {}


def test_an_array_with_other_axes_is_named() -> None:
    rule = Rule("w", (Part("w", ((1,), (0,))),))
    with pytest.raises(CheckpointError, match=r"array w is \[2, 3, 4\]; it should have 2 axes"):
        translate(_dialect(rule), {}, {"w": (2, 3, 4)})


def test_a_path_cannot_reach_into_python() -> None:
    rule = Rule(r"(?P<stem>.+)/kernel", (Part("{stem}.weight", ((0,),)),))
    path = "{stem}{0}{layer.__class__}/kernel"
    assert list(translate(_dialect(rule), {}, {path: (1,)})) == [
        "{stem}{0}{layer.__class__}.weight"
    ]


def test_a_dialect_is_known_by_its_mark() -> None:
    dialect = _dialect()
    assert find_dialect([dialect], ["a", "mark/x"]) is dialect
    assert find_dialect([dialect], ["a/mark/x"]) is None


def test_llama_comes_out_as_published(tmp_path: Path) -> None:
    config = CONFIG | {"tie_word_embeddings": False}
    weights = random_weights(config)
    folder = with_config(save(tmp_path / "x", {"params": flax_llama(weights)}), config)
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == sorted(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.read(name), values)


def test_gpt_2_keeps_its_matrices_in_by_out(tmp_path: Path) -> None:
    """FlaxGPT2's kernels are [out, in]; GPT-2's published matrices are [in, out]."""
    kernel = np.arange(36, dtype=np.float32).reshape(12, 3)
    tree = {
        "transformer": {
            "wte": {"embedding": np.ones((5, 3), np.float32)},
            "h": {"0": {"attn": {"c_attn": {"kernel": kernel, "bias": np.ones(12, np.float32)}}}},
            "ln_f": {"scale": np.ones(3, np.float32), "bias": np.zeros(3, np.float32)},
        }
    }
    folder = with_config(save(tmp_path / "x", tree), {"model_type": "gpt2"})
    checkpoint = open_checkpoint(str(folder))
    assert sorted(checkpoint.names()) == [
        "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_attn.weight",
        "transformer.ln_f.bias",
        "transformer.ln_f.weight",
        "transformer.wte.weight",
    ]
    read = checkpoint.read("transformer.h.0.attn.c_attn.weight")
    np.testing.assert_array_equal(read, kernel.T)
