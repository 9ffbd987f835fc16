"""Draft layers of a checkpoint, and EAGLE-3 heads, are loaded under the model's plan or refused."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.engine.running.ops import Propose
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader, make_loader
from sax.errors import SaxError
from sax.types import ModelSpec
from tests.each_case import Failures
from tests.golden.random_tensor import random_tensor
from tests.model_server.checkpoints.tiny_folder import CONFIG, VOCAB, write_json, write_tiny
from tests.model_server.loading.loads import spec_of as publication
from tests.model_server.loading.test_draft_loading import CONFIG as SERVER
from tests.model_server.loading.test_draft_loading import answers
from tests.model_server.loading.test_recurrent_models import folder_of

EMBED, FFW, OUTPUTS = CONFIG["hidden_size"], 10, 40
ROUTED: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "num_hidden_layers": 1,
    "head_dim": 8,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "moe_intermediate_size": FFW,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "n_shared_experts": 0,
    "first_k_dense_replace": 1,
}
_NOT_OF_GLM = ("mlp_bias",)


def write_glm(folder: Path, **changes: Any) -> Path:
    """A tiny GLM-4.5 of one layer, and the layer behind it that drafts."""
    write_tiny(folder, **ROUTED)
    config = json.loads((folder / "config.json").read_text()) | changes
    write_json(folder / "config.json", {k: v for k, v in config.items() if k not in _NOT_OF_GLM})
    held = load_file(folder / "model.safetensors")
    save_file({**held, **drafting(held)}, folder / "model.safetensors")
    return folder


def drafting(held: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of the layer that drafts, whose attention is that of the layer before."""
    random = np.random.default_rng(1)

    def drawn(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    kept = ("self_attn.", "input_layernorm.", "post_attention_layernorm.")
    first = {name.removeprefix("model.layers.0."): each for name, each in held.items()}
    layer = {name: each for name, each in first.items() if name.startswith(kept)}
    layer |= {f"{norm}.weight": drawn(EMBED) for norm in ("enorm", "hnorm", "shared_head.norm")}
    layer |= {"eh_proj.weight": drawn(EMBED, 2 * EMBED), "mlp.gate.weight": drawn(2, EMBED)}
    layer["mlp.gate.e_score_correction_bias"] = drawn(2)
    for number in range(2):
        name = f"mlp.experts.{number}"
        layer |= {f"{name}.{part}_proj.weight": drawn(FFW, EMBED) for part in ("gate", "up")}
        layer[f"{name}.down_proj.weight"] = drawn(EMBED, FFW)
    layer["embed_tokens.weight"] = held["model.embed_tokens.weight"].copy()
    layer["shared_head.head.weight"] = held["lm_head.weight"].copy()
    return {f"model.layers.1.{name}": each for name, each in layer.items()}


def write_eagle(folder: Path, **changes: Any) -> Path:
    """A tiny EAGLE-3 head of a tiny Llama, whose embedding it has."""
    folder.mkdir()
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": OUTPUTS}
    config = CONFIG | head | {"num_hidden_layers": 1, "tie_word_embeddings": False} | changes
    write_json(folder / "config.json", config)
    random = np.random.default_rng(2)
    heads, kv = (
        config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value")
    )
    ffw, wide = config["intermediate_size"], 2 * EMBED
    shapes = {
        "midlayer.self_attn.q_proj": (heads, wide),
        "midlayer.self_attn.k_proj": (kv, wide),
        "midlayer.self_attn.v_proj": (kv, wide),
        "midlayer.self_attn.o_proj": (EMBED, heads),
        "midlayer.mlp.gate_proj": (ffw, EMBED),
        "midlayer.mlp.up_proj": (ffw, EMBED),
        "midlayer.mlp.down_proj": (EMBED, ffw),
        "midlayer.input_layernorm": (EMBED,),
        "midlayer.hidden_norm": (EMBED,),
        "midlayer.post_attention_layernorm": (EMBED,),
        "fc": (EMBED, 3 * EMBED),
        "norm": (EMBED,),
        "lm_head": (OUTPUTS, EMBED),
    }
    drawn = {
        f"{name}.weight": random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    known = np.sort(random.choice(VOCAB, OUTPUTS, replace=False))
    maps = {"d2t": known - np.arange(OUTPUTS), "t2d": np.isin(np.arange(VOCAB), known)}
    save_file({**drawn, **maps}, folder / "model.safetensors")
    return folder


_READ_BOTH = ("q_proj.weight", "k_proj.weight", "v_proj.weight")


def write_library(folder: Path) -> Path:
    """The same head in the format of speculators, with a usual layer behind its first one."""
    write_eagle(folder)
    config = json.loads((folder / "config.json").read_text())
    inner = {key: value for key, value in config.items() if key != "draft_vocab_size"}
    inner |= {"num_hidden_layers": 2, "tie_word_embeddings": True}
    config = {"speculators_model_type": "eagle3", "draft_vocab_size": OUTPUTS}
    write_json(folder / "config.json", config | {"transformer_layer_config": inner})
    held = load_file(folder / "model.safetensors")
    named = {name.replace("midlayer.", "layers.0."): each for name, each in held.items()}
    for name, each in [*named.items()]:
        if name.startswith("layers.0.") and "hidden_norm" not in name:
            narrow = each[:, :EMBED].copy() if name.endswith(_READ_BOTH) else each
            named[name.replace("layers.0.", "layers.1.")] = narrow
    save_file(named, folder / "model.safetensors")
    return folder


def spec_of(folder: Path, **overrides: str) -> ModelSpec:
    return publication(folder, **{"DTYPE": '"float32"', "MAX_GUESSES": "4", **overrides})


def with_layers(folder: Path, **overrides: str) -> ModelSpec:
    return spec_of(folder, **{"SPECULATION": '"mtp"', **overrides})


def with_head(folder: Path, head: Path, **overrides: str) -> ModelSpec:
    drafted = {"SPECULATION": '"draft"', "DRAFT_MODEL": f'"{head}"'}
    return spec_of(folder, **drafted, **overrides)


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(SERVER)


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glm(tmp_path_factory.mktemp("glm") / "tiny")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("llama") / "tiny", num_hidden_layers=6)


def loaded(loader: ModelLoader, spec: ModelSpec) -> Loaded:
    made = loader(spec, lambda _: None)
    assert isinstance(made, Loaded)
    return made


def same_answers(loader: ModelLoader, plain: ModelSpec, drafting: ModelSpec) -> tuple[int, int]:
    """Weights in bytes of both; the answers of both are the same, and draft tokens were tried."""
    without, with_it = loaded(loader, plain), loaded(loader, drafting)
    with closing(without.runner), closing(with_it.runner):
        assert with_it.runner.ops[Propose]
        before = loader.compiles_while_serving()
        made, tried, _ = answers(with_it)
        assert made == answers(without)[0]
        assert tried > 0
        assert loader.compiles_while_serving() == before
        assert with_it.parts.total == with_it.memory
        return without.parts.weights, with_it.parts.weights


def test_the_checkpoints_own_layers_draft_and_share_embedding_and_head(
    loader: ModelLoader, glm: Path
) -> None:
    plain = spec_of(glm, SPECULATION='"ngram"')
    without, with_it = same_answers(loader, plain, with_layers(glm))
    held = load_file(glm / "model.safetensors")
    apart = ("model.layers.1.embed_tokens.", "model.layers.1.shared_head.head.")
    own = [
        name for name in held if name.startswith("model.layers.1.") and not name.startswith(apart)
    ]
    assert with_it - without == sum(held[name].nbytes for name in own)


@pytest.mark.nightly
def test_an_eagle_head_drafts_with_the_embedding_of_the_model(
    loader: ModelLoader, llama: Path, tmp_path: Path
) -> None:
    plain = spec_of(llama, SPECULATION='"ngram"')
    for head in (write_eagle(tmp_path / "eagle"), write_library(tmp_path / "library")):
        without, with_it = same_answers(loader, plain, with_head(llama, head))
        held = load_file(head / "model.safetensors")
        del held["t2d"]
        numbers = sum(each.size for each in held.values())
        assert with_it - without == 4 * numbers


@pytest.mark.nightly
def test_a_server_that_hands_prompts_over_moves_the_hidden_states(glm: Path) -> None:
    """And says so to the others, which refuse to exchange pages with a server without."""
    loader = make_loader(replace(SERVER, prefill=True, kv_cache_bytes=2**20))
    made = loaded(loader, with_layers(glm))
    with closing(made.runner):
        assert made.disaggregation is not None
        assert "hidden states of 12" in made.disaggregation.contract.draft
        page = made.disaggregation.page_bytes
    numbers = 2 * 2 * 2 * ROUTED["head_dim"] + EMBED  # of a token, in two layers and beside them
    assert page == 4 * SERVER.page_size * numbers


def test_what_drafts_nothing_is_refused_by_name(
    loader: ModelLoader, glm: Path, llama: Path, tmp_path: Path
) -> None:
    def eagle(name: str, **changes: Any) -> Path:
        return write_eagle(tmp_path / name, **changes)

    bare = write_glm(tmp_path / "bare", num_nextn_predict_layers=0)
    cases: list[tuple[ModelSpec, str]] = [
        (with_layers(llama), 'SPECULATION is "mtp", and this model has no draft layers'),
        (with_layers(bare), 'SPECULATION is "mtp", and this model has no draft layers'),
        (with_layers(glm, NUM_STAGES="2"), "hidden states of all stages.* leave out NUM_STAGES"),
        (with_layers(glm, DRAFT_MODEL='"x"'), 'DRAFT_MODEL is .* needs SPECULATION "draft"'),
        (with_head(llama, eagle("other", hidden_size=24)), "hidden_size = 24 and the model 12"),
        (with_head(llama, eagle("spec", speculators_model_type="mlp")), "of that library eagle3"),
        (with_head(llama, eagle("plain"), QUANTIZE='"int8"'), "set DRAFT_QUANTIZE to the model's"),
        (with_head(glm, eagle("deep")), "reads the model before layers 2, 0, -2"),
    ]
    failures = Failures()
    for spec, complaint in cases:
        with failures.of(complaint), pytest.raises(SaxError, match=complaint):
            loader(spec, lambda _: None)
    failures.end()


def write_recurrent(folder: Path) -> Path:
    """A tiny Qwen3-Next, and the layer that drafts, shaped like its one layer that attends."""
    folder.mkdir()
    checkpoint = Path(folder_of("qwen3_next", folder))
    held = load_file(checkpoint / "model.safetensors")
    prefix = next(n for n in held if n.endswith("self_attn.q_proj.weight"))
    prefix = prefix.removesuffix("self_attn.q_proj.weight")
    embed = held["model.norm.weight"].size
    shapes = {
        f"mtp.layers.0.{name.removeprefix(prefix)}": each.shape
        for name, each in held.items()
        if name.startswith(prefix)
    }
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    shapes |= {f"mtp.{norm}.weight": (embed,) for norm in norms}
    shapes["mtp.fc.weight"] = (embed, 2 * embed)
    drawn = {name: random_tensor(name, shape) for name, shape in shapes.items()}
    save_file({**held, **drawn}, checkpoint / "model.safetensors", {"format": "pt"})
    return checkpoint


@pytest.mark.nightly
def test_the_layers_of_a_recurrent_model_draft(tmp_path: Path) -> None:
    """Its states go back behind wrong draft tokens, of which random layers make many."""
    loader, folder = make_loader(SERVER), write_recurrent(tmp_path / "next")
    plain = spec_of(folder, SPECULATION='"ngram"')
    without, with_it = same_answers(loader, plain, with_layers(folder))
    held = load_file(folder / "model.safetensors")
    assert with_it - without == sum(e.nbytes for n, e in held.items() if n.startswith("mtp."))
