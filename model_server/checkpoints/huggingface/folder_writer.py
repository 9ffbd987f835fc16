"""Writes config.json and the tokenizer files of a Hugging Face folder, from any checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends


def write_beside(source: Checkpoint, folder: Path, dtypes: Mapping[str, str]) -> None:
    """Write the files; `dtypes` gives each tensor's number format. The folder must exist."""
    config = source.config | {"torch_dtype": _main_dtype(dtypes)}
    config.pop("quantization_config", None)  # tensors are written unquantised
    _write_json(folder / "config.json", config)
    _write_tokenizer(source, folder)


def _main_dtype(dtypes: Mapping[str, str]) -> str:
    return max(DTYPES, key=list(dtypes.values()).count)


def _write_tokenizer(source: Checkpoint, folder: Path) -> None:
    tokenizer, template = source.tokenizer(), source.chat_template()
    eos = ordered_ends(source)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.adds_bos,
        "bos_token": None if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
        "eos_token": tokenizer.token_text(eos[0]) if eos else None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.config.get("max_position_embeddings"),
    }
    if template is not None:
        named = {"default": template.source, "tool_use": template.for_tools}
        settings["chat_template"] = (
            [{"name": name, "template": source} for name, source in named.items()]
            if template.for_tools
            else template.source
        )
    ends = {"bos_token_id": tokenizer.bos_id, "eos_token_id": eos[0] if len(eos) == 1 else eos}
    (folder / "tokenizer.json").write_text(tokenizer.serialized, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "generation_config.json", source.generation_config | ends)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
