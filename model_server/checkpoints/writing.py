"""Writes an open checkpoint in one of our formats; it has its name only once it is complete."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_server.checkpoints.cast import DTYPES
from model_server.checkpoints.checkpoint import Checkpoint, ordered_ends
from model_server.checkpoints.huggingface.safetensors_writer import MAX_SHARD, write_safetensors
from model_server.checkpoints.huggingface.sentence_transformers import (
    check_sentence_settings,
    copy_sentence_settings,
)
from model_server.checkpoints.media_part import text_alone
from sax.errors import CheckpointError
from sax.types import Progress

SAME = "same"
HUGGINGFACE, GGUF, ORBAX = FORMATS = ("huggingface", "gguf", "orbax")

Report = Callable[[Progress], None]


def quiet(progress: Progress) -> None:
    """Report nothing."""


def check_absent(place: Path) -> None:
    """Raise CheckpointError if something is at the place already."""
    if place.exists() or place.is_symlink():
        raise CheckpointError(f"{place} already exists; remove it or choose another name")


def write_checkpoint(
    checkpoint: Checkpoint,
    place: Path,
    to: str,
    *,
    dtype: str = SAME,
    max_shard: int = MAX_SHARD,
    report: Report = quiet,
) -> None:
    """Write every tensor, with the files beside the weights. Raises CheckpointError.

    Of a model with images the text part is written, and the log says so.
    dtype: "same" keeps the number format in which each tensor is read.
    """
    checkpoint = text_alone(checkpoint)
    dtypes = {n: checkpoint.dtype(n) if dtype == SAME else dtype for n in checkpoint.names()}
    if to == GGUF:
        check_sentence_settings(checkpoint.folder)

    def write(path: Path) -> None:
        _write(checkpoint, path, to, dtypes, max_shard, report)
        if to != GGUF:
            copy_sentence_settings(checkpoint.folder, path)

    write_then_rename(place, write)


def write_then_rename(place: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file or folder elsewhere, then give it its name.

    Raises CheckpointError if something is there already, or it cannot be written.
    """
    check_absent(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            unfinished = work / place.name
            write(unfinished)
            check_absent(place)
            unfinished.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as exc:
        raise CheckpointError(f"{place} cannot be written: {exc.strerror or exc}") from exc


def _write(
    checkpoint: Checkpoint,
    path: Path,
    to: str,
    dtypes: Mapping[str, str],
    max_shard: int,
    report: Report,
) -> None:
    if to == GGUF:
        # Servers never do, so what writes one is imported on use.
        from model_server.checkpoints.gguf.writer import write_gguf

        write_gguf(checkpoint, path, dtypes, report)
        return
    path.mkdir()
    write_beside(checkpoint, path, dtypes)
    if to == ORBAX:
        from model_server.checkpoints.orbax.writer import write_orbax

        write_orbax(checkpoint, path, dtypes, report)
    else:
        write_safetensors(checkpoint, path, dtypes, report, max_shard)


def write_beside(
    source: Checkpoint,
    folder: Path,
    dtypes: Mapping[str, str],
    quantised: Mapping[str, Any] | None = None,
) -> None:
    """Write the files; `dtypes` gives each tensor's number format. The folder must exist.

    quantised: how tensors are; None: they are not.
    """
    config = source.config | {"torch_dtype": _main_dtype(dtypes)}
    for key in ("quantization_config", "compression_config"):
        config.pop(key, None)  # of what was read
    if quantised is not None:
        config["quantization_config"] = dict(quantised)
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
