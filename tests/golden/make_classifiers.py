"""Makes tests/golden/classifiers/*: shrunken random classifiers and the reference's logits.

Run by hand, in an environment with torch and transformers, from the repository root:

    python -m tests.golden.make_classifiers [NAME ...]

Each folder holds config.json, tensors.json (name -> shape) and golden.npz (prompt i64[S], segments
i64[S], logits f32[labels], how). Weights follow from the names (see random_tensor).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.golden.families_maker.decoders import llama, qwen2, qwen3
from tests.golden.families_maker.encoders import modernbert, modernbert_biases
from tests.golden.families_maker.gpts import bert, roberta
from tests.golden.random_tensor import random_tensor, uniform

HERE = Path(__file__).parent / "classifiers"
TOKENS = 20
SEPARATOR = 3  # ends the first text of a pair, as in tests/model_server/tiny_bert.py


def classes(config: Mapping[str, Any], kind: str, *labels: str) -> dict[str, Any]:
    """The config of a classifier of these labels."""
    named = {str(index): label for index, label in enumerate(labels)}
    return {**config, "architectures": [f"{kind}ForSequenceClassification"], "id2label": named}


CASES = {
    "bert": classes(bert(), "Bert", "LABEL_0"),
    "bert_labels": classes(bert(num_hidden_layers=2), "Bert", "bad", "fair", "good"),
    "roberta": classes(roberta(), "Roberta", "LABEL_0"),
    "xlm_roberta": classes(roberta(model_type="xlm-roberta"), "XLMRoberta", "LABEL_0", "LABEL_1"),
    "modernbert": classes(modernbert(), "ModernBert", "LABEL_0"),
    "modernbert_first": classes(
        modernbert_biases()
        | {"classifier_pooling": "cls", "classifier_bias": True, "classifier_activation": "silu"},
        "ModernBert",
        "bad",
        "fair",
        "good",
    ),
    "llama": classes(llama(pad_token_id=0), "Llama", "no", "yes"),
    "qwen2": classes(qwen2(pad_token_id=0), "Qwen2", "LABEL_0"),
    "qwen3": classes(qwen3(pad_token_id=0, tie_word_embeddings=True), "Qwen3", "a", "b", "c"),
}


def make(name: str, config: Mapping[str, Any]) -> None:
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    shapes = tensors_of(config)
    prompt = 4 + (uniform(f"prompt of {name}", TOKENS) * 80).astype(np.int64)
    prompt[TOKENS // 2 - 1] = SEPARATOR
    segments = (np.arange(TOKENS) >= TOKENS // 2).astype(np.int64)
    if config["model_type"] == "bert":
        given = {"token_type_ids": torch.from_numpy(segments)[None]}
    else:
        given, segments = {}, 0 * segments
    with torch.no_grad():
        out = load(config, shapes)(torch.from_numpy(prompt)[None], **given)
    versions = f"torch {torch.__version__} (CPU), transformers {transformers.__version__}"
    how = f"python -m tests.golden.make_classifiers; {versions}, float32, eager attention"
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    lines = [f"  {json.dumps(key)}: {json.dumps(shapes[key])}" for key in sorted(shapes)]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(
        folder / "golden.npz",
        how=np.asarray(how),
        prompt=prompt,
        segments=segments,
        logits=out.logits[0].numpy(),
    )


def tensors_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of a checkpoint as transformers writes it."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(folder, config)
        read = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_config(read)
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in sorted(file.keys())}


def load(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Any:
    tensors = {key: random_tensor(key, shape) for key, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        write_config(folder, config)
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not info["missing_keys"], info
    assert not info["unexpected_keys"], info
    return model.eval()


def write_config(folder: str, config: Mapping[str, Any]) -> None:
    (Path(folder) / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = set(sys.argv[1:]) or set(CASES)
    assert wanted <= set(CASES), f"there is no case {wanted - set(CASES)}"
    for case in sorted(wanted):
        make(case, CASES[case])
        sys.stdout.write(f"{case}\n")
