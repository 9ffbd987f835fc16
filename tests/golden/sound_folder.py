"""Writes the checkpoint of a case of kind `sounds` of tests.tools.golden."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.numpy import save_file

from tests.golden.sound_tokenizer import generation_config, tokenizer_json
from tests.tools.golden.sounds import CASES, HERE, is_multilingual, tensor_of


def write_case(name: str, folder: Path) -> Path:
    folder.mkdir()
    shapes = json.loads((HERE / name / "tensors.json").read_text())
    tensors = {key: tensor_of(key, tuple(shape)) for key, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(HERE / name / "config.json", folder / "config.json")
    config = CASES[name][0]
    said = generation_config(multilingual=is_multilingual(name))
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16000,
    }
    for file, held in (("generation_config", said), ("preprocessor_config", extractor)):
        (folder / f"{file}.json").write_text(json.dumps(held))
    (folder / "tokenizer.json").write_text(tokenizer_json(config["max_source_positions"]))
    return folder
