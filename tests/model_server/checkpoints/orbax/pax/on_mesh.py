"""Loads every golden Pax model on two fake devices and saves its logits; a process of its own.

python -m tests.model_server.checkpoints.orbax.pax.on_mesh RESULTS.npz
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.model_server.checkpoints.orbax.pax.test_dialect import loaded
from tests.model_server.checkpoints.pax_writer import write_arrays
from tests.model_server.models.on_meshes import mesh_logits
from tests.tools.golden.pax.cases import CASES, PaxCase
from tests.tools.golden.pax.model import prompt_of, variables_of

SHAPE = (1, 1, 2)


def logits_of(case: PaxCase) -> np.ndarray:
    """f32[S, V]."""
    with tempfile.TemporaryDirectory() as folder:
        model, recipe = loaded(write_arrays(Path(folder), variables_of(case)), case, SHAPE)
    return mesh_logits(model, prompt_of(case), recipe, SHAPE)


if __name__ == "__main__":
    results: dict[str, Any] = {case.name: logits_of(case) for case in CASES}
    np.savez(sys.argv[1], **results)
