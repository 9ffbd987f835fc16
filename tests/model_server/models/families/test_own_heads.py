"""The tensors of draft layers are those that checkpoints have, and their shapes the model's; what
they compute is what transformers computes, where it runs them (tests/tools/golden/drafts.py)."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.checkpoint_view import view_of, without_prefixes
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.text_part import text_config
from model_server.engine.buckets import Bucket
from model_server.engine.running.draft_program import HeadProgram
from model_server.kernels import xla
from model_server.loading.draft_loading import with_own_head
from model_server.loading.weights import mismatches, read_weights
from model_server.models.draft_heads import own_head_recipe
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import own_device
from model_server.models.weights.weight import Blueprint, borrowed_weights, leaf_shapes
from sax.errors import InvalidRequest
from tests.each_case import each_case
from tests.golden.random_tensor import random_tensor
from tests.model_server.engine.running.test_draft_program import LIMITS
from tests.model_server.models.family_cases import F32, checkpoint_of, config_of
from tests.model_server.tiny import PAGE, empty_pages, one_prompt

_LATENT = {"q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm"}
_LATENT |= {"kv_b_proj", "o_proj"}
_GROUPED = {"q_proj", "k_proj", "v_proj", "o_proj"}
_BIASED = _GROUPED | {f"{part}_proj.bias" for part in "qkv"}
_NORMED = {*_GROUPED, "q_norm", "k_norm"}
_EXPERTS = {"gate", "gate.e_score_correction_bias"}
_EXPERTS |= {
    f"{each}.{part}_proj"
    for each in ("experts.*", "shared_experts")
    for part in ("gate", "up", "down")
}
_MLPS = {
    f"{each}.{part}_proj" for each in ("experts.*", "shared_mlp") for part in ("gate", "up", "down")
}
_FINAL = {"enorm", "hnorm", "eh_proj", "final_layernorm"}
_OWN = {"enorm", "hnorm", "eh_proj", "shared_head.norm", "input_layernorm"}
_OWN |= {"post_attention_layernorm"}
_GATED = {"gate_proj", "up_proj", "down_proj"}
_INDEXER = {"wq_b", "wk", "k_norm", "k_norm.bias", "weights_proj"}
_INDEXED = _LATENT | {f"indexer.{name}" for name in _INDEXER}
_SHARED = {f"shared_expert.{part}" for part in _GATED} | {"shared_expert_gate", "gate"}
_MTP = {"fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}
_NORMS = {"input_layernorm", "post_attention_layernorm"}


def _layer(attention: set[str], ffw: set[str], own: set[str]) -> set[str]:
    return own | {f"self_attn.{n}" for n in attention} | {f"mlp.{n}" for n in ffw}


def _apart(ffw: set[str]) -> set[str]:
    return _MTP | {f"layers.0.{name}" for name in _layer(_NORMED, ffw, _NORMS)}


# Golden case -> changes to its config.json, prefix and names of the tensors of its head
CASES: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    "deepseek_v3": (
        {"num_nextn_predict_layers": 1},
        "model.layers.*",
        _layer(_LATENT, _EXPERTS, _OWN),
    ),
    "glm4_moe_lite": (
        {"num_nextn_predict_layers": 1},
        "model.layers.*",
        _layer(_LATENT, _EXPERTS, _OWN),
    ),
    "glm4_moe": (
        {"num_nextn_predict_layers": 2, "attention_bias": False},
        "model.layers.*",
        _layer(_NORMED, _EXPERTS, _OWN),
    ),
    "deepseek_v32": (
        {"num_nextn_predict_layers": 1},
        "model.layers.*",
        _layer(_INDEXED, _EXPERTS, _OWN),
    ),
    "glm_moe_dsa_every_second": (  # its last layer has no indexer
        {"num_nextn_predict_layers": 1},
        "model.layers.*",
        _layer(_INDEXED, _EXPERTS, _OWN),
    ),
    "hy_v3": (
        {"num_nextn_predict_layers": 1},
        "model.layers.*",
        _layer(_NORMED, {"router.gate", "expert_bias", *_MLPS}, {*_NORMS, *_FINAL}),
    ),
    "exaone_moe": ({"num_nextn_predict_layers": 1}, "mtp", _apart(_GATED)),
    "ernie4_5_moe": (
        {"num_nextn_predict_layers": 1},
        "model",
        {f"mtp_{each}.0" for each in ("emb_norm", "hidden_norm", "linear_proj")}
        | {f"mtp_block.0.{name}" for name in _layer(_GROUPED, _GATED, _NORMS)},
    ),
    "qwen2_untied_mqa": (
        {"model_type": "mimo", "num_nextn_predict_layers": 1, "attention_bias": True},
        "model.mtp_layers.0",
        _layer(_BIASED, _GATED, _NORMS)
        | {"token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"},
    ),
    "qwen3_5": ({"mtp_num_hidden_layers": 1}, "mtp", _apart(_GATED)),
    "mellum": (
        {},
        "mtp",
        _apart({f"experts.*.{part}" for part in _GATED} | {"gate"}),
    ),
    "qwen3_next": (
        {},
        "mtp",
        _apart({f"experts.*.{part}" for part in _GATED} | _SHARED),
    ),
    "nemotron_h": (
        {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"},
        "mtp.layers",
        {f"0.{n}" for n in ("enorm", "hnorm", "eh_proj", "norm", *(f"mixer.{n}" for n in _GROUPED))}
        | {"1.final_layernorm", "1.norm", "1.mixer.gate", "1.mixer.gate.e_score_correction_bias"}
        | {
            f"1.mixer.{e}.{part}_proj"
            for e in ("experts.*", "shared_experts")
            for part in ("up", "down")
        },
    ),
}


def _recipe(case: str, changes: dict[str, Any]) -> Recipe:
    made = make_recipe("auto", config_of(case) | changes, {})
    assert isinstance(made, Recipe)
    return made


def _head(case: str, changes: dict[str, Any]) -> tuple[Recipe, Recipe]:
    """The model, and its head."""
    recipe = _recipe(case, changes)
    assert recipe.own_head is not None
    return recipe, own_head_recipe(recipe, recipe.own_head)


def _names(made: Blueprint, held: Blueprint, prefix: str) -> set[str]:
    """Names below the prefix of what is not the model's; numbers of layers and experts as *."""
    lent = borrowed_weights(made, held)
    own = (each for at, each in enumerate(made.declarations) if at not in lent)
    names = {name.removesuffix(".weight") for each in own for name in each.source.names}
    shown = {re.sub(r"(?<=experts\.)\d+|(?<=model\.layers\.)\d+", "*", name) for name in names}
    assert all(name.startswith(f"{prefix}.") for name in shown), shown
    return {name.removeprefix(f"{prefix}.") for name in shown}


@each_case("case", CASES)
def test_draft_layers_have_the_tensors_that_checkpoints_have(case: str) -> None:
    changes, prefix, wanted = CASES[case]
    recipe, made = _head(case, changes)
    found = _names(made.blueprint(), recipe.blueprint(), prefix)
    assert found == wanted, (found - wanted, wanted - found)


@each_case("case", CASES)
def test_embedding_and_output_layer_are_the_models(case: str) -> None:
    changes, _, _ = CASES[case]
    recipe, head = _head(case, changes)
    made, held = head.blueprint(), recipe.blueprint()
    lent = {made.declarations[at].path for at in borrowed_weights(made, held)}
    tied = config_of(case).get("tie_word_embeddings", False)
    shared = {"final_norm.scale"} if case.startswith("ernie") else set()
    assert lent == {"embedding.table"} | (set() if tied else {"head.kernel"}) | shared


def test_models_without_draft_layers_have_no_head() -> None:
    none: list[tuple[str, dict[str, Any]]] = [
        ("deepseek_v3", {"num_nextn_predict_layers": 0}),
        ("glm4_moe", {"num_nextn_predict_layers": 0}),
        ("qwen3_5", {"mtp_num_hidden_layers": 0}),
        ("nemotron_h", {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M*E"}),
        ("glm4", {}),
    ]
    assert [case for case, changes in none if _recipe(case, changes).own_head] == []


@pytest.mark.nightly
@each_case("case", CASES)
def test_every_head_is_traced_with_the_pages_of_its_model(case: str) -> None:
    recipe, head = _head(case, CASES[case][0])
    made = head.blueprint()
    leaves = leaf_shapes(made, own_device())
    pages = empty_pages(head, LIMITS.pages, xla.KERNEL)
    sizes = {"vocab": recipe.vocab, "known": recipe.vocab, "width": recipe.embed}
    parts = made, leaves, pages, LIMITS, xla.KERNEL
    program = HeadProgram(*parts, most=LIMITS.draft_tokens, **sizes)
    program.lower(Bucket(2, 4))
    program.lower_draft_tokens(2)


DRAFTS = Path(__file__).parents[3] / "golden" / "drafts"


def _read(name: str, folder: Path) -> tuple[Any, Recipe]:
    """The draft layer of a golden case, and its recipe."""
    shapes = json.loads((DRAFTS / name / "tensors.json").read_text())
    tensors = {each: random_tensor(each, tuple(shape)) for each, shape in shapes.items()}
    shutil.copy(DRAFTS / name / "config.json", folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        assert recipe.own_head is not None
        head = own_head_recipe(recipe, recipe.own_head)
        made = head.blueprint()
        names = {name for each in made.declarations for name in each.source.names}
        needed = view_of(checkpoint, {name: name for name in names})
        return made.assemble(read_weights(made.declarations, needed, lambda _: None)), head


@each_case("name", sorted(folder.name for folder in DRAFTS.iterdir()))
def test_a_draft_layer_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    """From the model's hidden states, and the token after each; beside them an idle row."""
    golden = np.load(DRAFTS / name / "golden.npz")
    module, head = _read(name, tmp_path)
    before, tokens = (np.pad(golden["before"], ((1, 0), (0, 0))), golden["prompt"].copy())
    tokens[0], count = 0, len(before) - 1
    pages = empty_pages(head, -(-count // PAGE))[:-1]  # the last has hidden states
    run = jax.jit(lambda *given: module(*given)[0])
    given = (tokens.astype(np.int32), before, np.arange(count + 1, dtype=np.int32))
    found = np.asarray(run(*given, pages, one_prompt(count)))[1:]
    np.testing.assert_allclose(found, golden["hidden"], atol=1e-4, rtol=1e-4)


# Golden case -> changes to its config.json, and a tensor of its draft layers, which are not built.
SKIPPED: dict[str, tuple[dict[str, Any], str]] = {
    "axk1": ({"num_nextn_predict_layers": 1}, "model.layers.{layers}.eh_proj.weight"),
    "axk2": ({"num_nextn_predict_layers": 1}, "model.layers.{layers}.eh_proj.weight"),
    "bailing_hybrid": ({"num_nextn_predict_layers": 1}, "model.layers.{layers}.eh_proj.weight"),
    "deepseek_v4": ({}, "mtp.0.enorm.weight"),
    "dots3_note": ({}, "model.language_model.layers.{layers}.eh_proj.weight"),
    "glm5_next": ({}, "model.language_model.layers.{layers}.eh_proj.weight"),
    "hy_v4": ({}, "model.mtp_layers.0.eh_proj.weight"),
    "mimo_v2": ({}, "model.mtp.layers.0.eh_proj.weight"),
    "minimax_m3": ({}, "mtp.layers.0.eh_proj.weight"),
    "mistral_large4": ({}, "mtp_dspark.layers.0.eh_proj.weight"),
    "qwen4_exp": ({}, "mtp.fc.weight"),
    "step3p7": ({}, "model.language_model.layers.{layers}.eh_proj.weight"),
}


@each_case("case", SKIPPED)
def test_draft_layers_that_no_reference_computes_are_left_out(case: str, tmp_path: Path) -> None:
    changes, name = SKIPPED[case]
    shutil.copytree(checkpoint_of(case), tmp_path, dirs_exist_ok=True)
    config = config_of(case) | changes
    layers = text_config(config)["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    spare = {name.format(layers=layers): np.zeros((2, 2), np.float32)}
    held = load_file(tmp_path / "model.safetensors")
    save_file(held | spare, tmp_path / "model.safetensors", {"format": "pt"})
    with closing(open_checkpoint(str(tmp_path))) as checkpoint:
        recipe = make_recipe("auto", checkpoint.config, F32)
        assert isinstance(recipe, Recipe)
        assert recipe.own_head is None
        needed = without_prefixes(checkpoint, recipe.unused)
        declared = recipe.blueprint(checkpoint=checkpoint).declarations
        assert [*mismatches(declared, needed)] == []
        asked = make_recipe("auto", checkpoint.config, F32 | {"SPECULATION": '"mtp"'})
        assert isinstance(asked, Recipe)
        with pytest.raises(InvalidRequest, match="has no draft layers of its own that are read"):
            with_own_head(asked, checkpoint)
