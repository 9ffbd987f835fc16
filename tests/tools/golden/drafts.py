"""What the draft layer of a checkpoint makes of a prompt, by transformers' `MtpModel`.

A folder holds config.json and tensors.json (name -> shape, the draft layer's among them) and
golden.npz: prompt i64[S]; before f32[S - 1, D], the last hidden states of the model; hidden
f32[S - 1, D], those of the draft layer, which is given each but the first token of the prompt; how.
Weights follow from the names. The models are those of `families`, with one layer that drafts;
`generate(use_mtp=True)` of transformers 5.24 runs no other families' layers as they are published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common
from tests.tools.golden.common import Shapes
from tests.tools.golden.families import maker

_ONE = {"num_nextn_predict_layers": 1}
CASES: Mapping[str, Mapping[str, Any]] = {  # changes to the config of a family's case
    "deepseek_v3": {},
    "glm4_moe": _ONE,
    "glm4_moe_air": _ONE,
    "mellum": {},
}


def make(name: str, into: Path) -> None:
    """Write one folder. Raises AssertionError if the layer hardly changes what it is given."""
    folder = maker.FOLDER / name
    config = common.read_json(folder / "config.json") | CASES[name]
    model = {n: tuple(s) for n, s in common.read_json(folder / "tensors.json").items()}
    shapes = _with_draft_layer(config, model)
    prompt = np.load(folder / "golden.npz")["prompt"]
    before, hidden = _run(config, shapes, prompt)
    common.assert_changes(f"{name}: the layer", hidden, before)
    common.write_json(into / name / "config.json", config)
    told = "MtpModel, float32, eager attention, weights from random_tensor"
    common.write_case(
        into / name,
        shapes,
        common.how("drafts", name, told),
        prompt=prompt,
        before=before,
        hidden=hidden,
    )


def _with_draft_layer(config: Mapping[str, Any], model: Shapes) -> Shapes:
    """Add the tensors of a layer like the model's last one, by the names of published files."""
    last, width = config["num_hidden_layers"] - 1, config["hidden_size"]
    own = f"model.layers.{last}."
    layer = {n.removeprefix(own): s for n, s in model.items() if n.startswith(own)}
    norms = dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), (width,))
    around = {**norms, "eh_proj": (width, 2 * width)}
    if config["model_type"] == "mellum":
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
        drafts = {f"mtp.layers.0.{name}": shape for name, shape in layer.items()}
        around = dict(zip(names, around.values(), strict=True))
        return model | drafts | {f"mtp.{name}.weight": shape for name, shape in around.items()}
    prefix = f"model.layers.{last + 1}."
    layer |= {f"{name}.weight": shape for name, shape in around.items()}
    return model | {prefix + name: shape for name, shape in layer.items()}


def _run(
    config: Mapping[str, Any], shapes: Shapes, prompt: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The last hidden states of the model and those of the layer, each f32[S - 1, D]."""
    import torch
    import transformers
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    tokens = torch.from_numpy(prompt)[None]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        common.write_json(Path(folder) / "config.json", config)
        tensors = {name: random_tensor(name, shape) for name, shape in shapes.items()}
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
        made = getattr(transformers, config["architectures"][0])
        main = made.from_pretrained(folder, dtype=torch.float32, **ways)
        # By these it finds the tensors; of its classes some know the published models' sizes only.
        behind = rf"(^|\.)layers\.{config['num_hidden_layers']}\."
        main._keys_to_ignore_on_load_unexpected = [behind, r"^mtp\."]
        drafting = MtpModel.from_pretrained(main)
        before = main(tokens, output_hidden_states=True).hidden_states[-1][:, :-1]
        hidden = drafting.forward_layer(
            0,
            before,
            torch.arange(1, tokens.shape[1])[None],
            MtpCache(config=main.config.get_mtp_config()),
            input_ids=tokens[:, 1:],
        )
    return before[0].numpy(), hidden[0].numpy()
