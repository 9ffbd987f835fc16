"""A gpt-oss in a GGUF file holds the weights that its Hugging Face folder holds."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.model_server.checkpoints.gguf_case import weights_of, write_case

CASE = "gpt_oss"


def folders(path: Path) -> tuple[Path, Path]:
    """The golden case with the published models' gate, and the same with its experts apart."""
    fused, apart = (write_case(CASE, path / name) for name in ("fused", "apart"))
    for folder, more in ((fused, {}), (apart, {"experts_apart": True})):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"swiglu_limit": 7.0} | more))
    save_file(dict(one_by_one()), apart / "model.safetensors")
    return fused, apart


def one_by_one() -> Any:
    for name, numbers in weights_of(CASE).items():
        prefix, _, part = name.partition(".mlp.experts.")
        if not part:
            yield name, numbers
            continue
        kind = "bias" if part.endswith("_bias") else "weight"
        wide = numbers if kind == "bias" else numbers.swapaxes(1, 2)
        both = part.startswith("gate_up")
        for expert, own in enumerate(wide):
            parts = {"gate": own[::2], "up": own[1::2]} if both else {"down": own}
            for which, values in parts.items():
                at = f"{prefix}.mlp.experts.{expert}.{which}_proj.{kind}"
                yield at, np.ascontiguousarray(values)


def held_of(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration and the weights as a model holds them."""
    with closing(open_checkpoint(str(path))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"'})
        declared = recipe.blueprint().declarations
        held = read_weights(declared, checkpoint, lambda _: None)
    return checkpoint.config, {d.path: np.asarray(a) for d, a in zip(declared, held, strict=True)}


def test_a_file_holds_what_the_folder_holds(tmp_path: Path) -> None:
    fused, apart = folders(tmp_path)
    convert(str(apart), str(tmp_path / "x.gguf"))
    config, found = held_of(tmp_path / "x.gguf")
    wanted_config, wanted = held_of(fused)
    assert found.keys() == wanted.keys()
    for path, numbers in wanted.items():
        np.testing.assert_array_equal(found[path], numbers, path)
    for key in ("layer_types", "sliding_window", "num_local_experts", "num_experts_per_tok"):
        assert config[key] == wanted_config[key]
    scaling = wanted_config["rope_scaling"]
    assert config["rope_scaling"] == {key: scaling[key] for key in config["rope_scaling"]}
    assert config["rope_scaling"]["truncate"] is False


def test_a_folder_whose_experts_are_in_one_tensor_is_not_written(tmp_path: Path) -> None:
    fused, _ = folders(tmp_path)
    with pytest.raises(CheckpointError, match=r"mlp\.experts"):
        convert(str(fused), str(tmp_path / "x.gguf"))
