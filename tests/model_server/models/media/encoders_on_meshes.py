"""Runs encoders of golden cases on meshes of fake devices and saves their vectors.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.models.media.encoders_on_meshes RESULTS.npz CASE:1x1x2 ...

RESULTS.npz holds, under each of these names, the vectors f32[M, W] of all images; or, under
`NAME error`, why there are none.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import numpy as np

from tests.model_server.models.media.media_cases import images_of, load_media, prepared_of
from tests.model_server.models.media.test_media_families import recipe_of, seen


def encoded(name: str, shape: tuple[int, int, int]) -> np.ndarray:
    _, encoder, whole = load_media(name, shape)
    recipe = recipe_of(whole)
    return seen(encoder, recipe, [prepared_of(recipe, image) for image in images_of(name)])


def main(path: str, *runs: str) -> None:
    results: dict[str, Any] = {}
    for run in runs:
        name, _, shape = run.partition(":")
        replica, data, model = map(int, shape.split("x"))
        try:
            results[run] = encoded(name, (replica, data, model))
        except Exception:
            results[f"{run} error"] = np.asarray(traceback.format_exc())
    np.savez(path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
