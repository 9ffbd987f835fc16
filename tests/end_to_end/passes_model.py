"""A small decoder that also embeds, ranks and differentiates."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.end_to_end.cell import Cell
from tests.model_server.models.family_cases import checkpoint_of
from tests.model_server.tiny_bert import save_tokenizer

MODEL = "/sax/test/passes"
OVERRIDES = {
    "DTYPE": "float32",
    "MAX_CONTEXT": 64,
    "PASS_CONTEXT": 32,
    "NUM_CACHE_SLOTS": 1,
    "QUERY_FORMAT": "raw",
    "TASKS": ["generate", "embed", "gradient"],
    "GRADIENT_WRT_INPUT_TENSOR_NAMES": ["weights"],
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": ["final_norm.scale"],
    "MATRYOSHKA": True,
}


def publish_passes(cell: Cell, folder: Path) -> None:
    """Publish the model from an empty folder, and wait until it is ready."""
    shutil.copytree(checkpoint_of("llama_untied_mqa"), folder, dirs_exist_ok=True)
    save_tokenizer(folder)
    cell.publish(str(folder), model=MODEL, model_path="auto", overrides=OVERRIDES)
