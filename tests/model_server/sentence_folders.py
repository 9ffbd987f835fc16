"""Folders as sentence-transformers writes them, and of models with a vector or labels per token,
with their random weights.

See tools/golden/sentences.py and tokens.py; weights follow from their names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from tests.golden.random_tensor import random_tensor

_GOLDEN = Path(__file__).parents[1] / "golden"


def sentence_folder(folder: Path, case: str, kind: str = "sentences", **config: Any) -> Path:
    """Write the case's folder; `config` changes its config.json. kind: of golden files."""
    given = _GOLDEN / kind / case
    shutil.copytree(given, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    for file, shapes in json.loads((given / "tensors.json").read_text()).items():
        tensors = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
        save_file(tensors, folder / file, {"format": "pt"})
    return folder


def golden_sentences(case: str, kind: str = "sentences") -> dict[str, Any]:
    """texts, vectors and queries, or pairs and scores, or what tokens.py says."""
    return json.loads((_GOLDEN / kind / case / "golden.json").read_text())
