"""Folders as sentence-transformers writes them, with their random weights.

See tools/golden/sentences.py; weights follow from their names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor

_SENTENCES = Path(__file__).parents[1] / "golden" / "sentences"


def sentence_folder(folder: Path, case: str, **config: Any) -> Path:
    """Write the case's folder; `config` changes its config.json."""
    shutil.copytree(_SENTENCES / case, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    for file, shapes in json.loads((_SENTENCES / case / "tensors.json").read_text()).items():
        tensors = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
        save_file(tensors, folder / file, {"format": "pt"})
    return folder


def golden_sentences(case: str) -> dict[str, Any]:
    """texts, vectors and queries, or pairs and scores."""
    return json.loads((_SENTENCES / case / "golden.json").read_text())
