"""Writes a checkpoint as a Hugging Face folder, tensor by tensor.

The safetensors header is computed first, from shapes alone, so that one tensor at a time is in
memory. Knows where things go in the folder; what they mean is the checkpoint's business.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.cast import DTYPES, cast
from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.safetensors_header import DTYPES as STORED
from sax.types import Progress

_STORED_NAME = {str(dtype): name for name, dtype in STORED.items()}


def write_folder(
    source: Checkpoint,
    folder: Path,
    dtypes: Mapping[str, str],
    report: Callable[[Progress], None],
) -> None:
    """`dtypes` says what each tensor is to be stored as. The folder must exist."""
    _write_json(folder / "config.json", source.config | {"torch_dtype": _main_dtype(dtypes)})
    _write_tokenizer(source, folder)
    with (folder / "model.safetensors").open("xb") as file:
        file.write(_header(source, dtypes))
        for done, (name, dtype) in enumerate(dtypes.items()):
            report(Progress("writing", done, len(dtypes), "tensors"))
            cast(name, source.read(name), dtype).tofile(file)
    report(Progress("writing", len(dtypes), len(dtypes), "tensors"))


def _main_dtype(dtypes: Mapping[str, str]) -> str:
    return max(DTYPES, key=list(dtypes.values()).count)


def _header(source: Checkpoint, dtypes: Mapping[str, str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype in dtypes.items():
        shape = source.shape(name)
        start, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        stored = _STORED_NAME[dtype]
        entries[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors start aligned
    return len(text).to_bytes(8, "little") + text


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
        settings["chat_template"] = template.source
    ends = {"bos_token_id": tokenizer.bos_id, "eos_token_id": eos[0] if len(eos) == 1 else eos}
    (folder / "tokenizer.json").write_text(tokenizer.serialized, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "generation_config.json", source.generation_config | ends)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
