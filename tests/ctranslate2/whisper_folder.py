"""Writes a Whisper in CTranslate2's format as a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.ctranslate2.model_bin import ModelBin, read_model_bin
from tests.ctranslate2.whisper_tensors import layers_of, whisper_tensors

_GELU = 3  # CTranslate2's number of the activation
_SMALLEST_MULTILINGUAL = 51865


def write_whisper(source: Path, folder: Path) -> Path:
    """Write the folder of a folder with model.bin, config.json and tokenizer.json."""
    model = read_model_bin(source / "model.bin")
    assert model.spec == "WhisperSpec"
    folder.mkdir()
    tensors = {name: np.ascontiguousarray(each) for name, each in whisper_tensors(model).items()}
    save_file(tensors, folder / "model.safetensors")
    shutil.copy(source / "tokenizer.json", folder / "tokenizer.json")
    config = _config(model, tensors)
    for file, held in (
        ("config", config),
        ("generation_config", _generation(source, config["vocab_size"])),
        ("preprocessor_config", _extractor(config["num_mel_bins"])),
    ):
        (folder / f"{file}.json").write_text(json.dumps(held, indent=2), encoding="utf-8")
    return folder


def _config(model: ModelBin, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    vocab, embed = tensors["model.decoder.embed_tokens.weight"].shape
    made = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "activation_function": "gelu",
        "d_model": embed,
        "is_encoder_decoder": True,
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": len(tensors["model.decoder.embed_positions.weight"]),
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "vocab_size": vocab,
    }
    for half in ("encoder", "decoder"):
        made[f"{half}_layers"] = layers_of(model, half)
        made[f"{half}_attention_heads"] = int(model.variables[f"{half}/num_heads"])
        made[f"{half}_ffn_dim"] = len(tensors[f"model.{half}.layers.0.fc1.weight"])
    assert int(model.variables["decoder/activation"]) == _GELU
    return made


def _generation(source: Path, vocab: int) -> dict[str, Any]:
    said = json.loads((source / "config.json").read_text(encoding="utf-8"))
    return {
        "alignment_heads": said["alignment_heads"],
        "begin_suppress_tokens": said["suppress_ids_begin"],
        "is_multilingual": vocab >= _SMALLEST_MULTILINGUAL,
        "max_initial_timestamp_index": 50,
        "suppress_tokens": said["suppress_ids"],
    }


def _extractor(bins: int) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": bins,
        "sampling_rate": 16000,
    }
