"""Reads weights on every island in both ways and compares; a process of its own, behind a proxy.

python -m tests.model_server.islands.weights PATH [OVERRIDES] ... prints a line of JSON per model
and island: arrays, those that differ, and what was said where workers did not read.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.islands import BACKEND, islands
from model_server.loading.beside_devices import weights_there
from model_server.loading.device_memory import layout_for
from model_server.loading.placed_model import PlacedModel, place_model
from model_server.loading.weights import read_weights
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import SaxError
from sax.types import ModelSpec, Progress


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def unlike(one: jax.Array, other: jax.Array) -> bool:
    """True if two arrays differ in any bit, or in where their parts are."""
    same = one.dtype == other.dtype and one.sharding == other.sharding
    return not (same and np.asarray(one).tobytes() == np.asarray(other).tobytes())


def compared(spec: ModelSpec, plan: PlacedModel, checkpoint: Checkpoint) -> dict[str, Any]:
    heard, phases = Heard(), list[Progress]()

    def report(progress: Progress) -> None:
        phases.append(progress)
        if os.environ.get("TEAR"):  # after it was opened here, before it is opened there
            (Path(spec.checkpoint) / "model.safetensors").write_bytes(b"torn")

    weights_there.logger.addHandler(heard)
    try:
        there = weights_there.read_there(spec, plan, checkpoint, report)
    except SaxError as exc:
        return {"error": f"{type(exc).__name__}: {exc.text}"}
    finally:
        weights_there.logger.removeHandler(heard)
    if there is None:
        return {"arrays": 0, "said": heard.texts}
    if os.environ.get("COMPARE") == "no":
        return {"arrays": len(there), "steps": len(phases)}
    here = read_weights(plan.blueprint.declarations, checkpoint, lambda _: None, plan.layout)
    differ = [place for place, both in enumerate(zip(there, here, strict=True)) if unlike(*both)]
    return {"arrays": len(there), "differ": differ, "steps": len(phases)}


def main() -> None:
    BACKEND.register(os.environ)
    weights_there._AT_ONCE = 4096  # so that several questions are asked
    for told in sys.argv[1:]:
        path, _, overrides = told.partition(" ")
        spec = ModelSpec(
            model_id="/sax/test/small",
            model_path="auto",
            checkpoint=path,
            replicas=1,
            overrides=json.loads(overrides or "{}"),
        )
        for number, devices in islands().items():
            checkpoint = open_checkpoint(path)
            recipe = make_recipe(spec.model_path, checkpoint.config, spec.overrides)
            assert isinstance(recipe, Recipe)
            plan = place_model(recipe, checkpoint, layout_for(recipe).placed(devices))
            said = {"island": number, **compared(spec, plan, checkpoint)}
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
            if "error" in said:  # nothing can be opened any more
                os._exit(0)
    os._exit(0)  # the client of a proxy server aborts a process that ends while connected


if __name__ == "__main__":
    main()
