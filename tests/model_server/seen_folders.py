"""Folders of models that compare or read texts and images, with their random weights.

See tools/golden/seen.py; weights follow from their names.
"""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow
from safetensors.numpy import save_file

from sax.chat import Image
from tests.tools.golden.seen import tensor_of

_GOLDEN = Path(__file__).parents[1] / "golden" / "seen"


def seen_folder(folder: Path, case: str, **config: Any) -> Path:
    """Write the case's folder; `config` changes its config.json."""
    given = _GOLDEN / case
    ignored = shutil.ignore_patterns("golden.npz", "tensors.json")
    shutil.copytree(given, folder, dirs_exist_ok=True, ignore=ignored)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    shapes = json.loads((given / "tensors.json").read_text())
    tensors = {name: tensor_of(name, tuple(shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def config_of(case: str) -> dict[str, Any]:
    return json.loads((_GOLDEN / case / "config.json").read_text())


def golden_seen(case: str) -> dict[str, np.ndarray]:
    """The arrays of the case, by name."""
    with np.load(_GOLDEN / case / "golden.npz") as arrays:
        return dict(arrays)


def images_of(case: str) -> list[Image]:
    """The images of the case as PNG files."""
    golden = golden_seen(case)
    pixels = (golden[f"image_{n}"] for n in range(100) if f"image_{n}" in golden)
    return [png(each) for each in pixels]


def png(pixels: np.ndarray) -> Image:
    """u8[h, w, 3] as a PNG file."""
    made = io.BytesIO()
    Pillow.fromarray(pixels).save(made, "PNG")
    return Image(made.getvalue())
