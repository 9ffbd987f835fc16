"""Runs golden cases with images on meshes of fake devices; a process of its own.

    python -m tests.model_server.models.media.media_on_meshes RESULTS.npz CASE:1x1x2 ...

RESULTS.npz holds, under each of these names, logits f32[S, V]; under `NAME rows` the vectors of all
images; under `NAME share`, how much of the encoder the device with most of it holds; or, under
`NAME error`, why there are none.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

import numpy as np

from tests.model_server.models.media.media_cases import load_media, parts_of, prompt_of
from tests.model_server.models.media.media_runs import logits_with_images, seen
from tests.model_server.models.on_meshes import largest_share


def main() -> None:
    path, *runs = sys.argv[1:]
    results: dict[str, Any] = {}
    for run in runs:
        name, _, sizes = run.partition(":")
        replica, data, inner = map(int, sizes.split("x"))
        try:
            decoder, encoder, whole = load_media(name, (replica, data, inner))
            images = parts_of(whole.media, name)
            rows = seen(encoder, whole.media, images)
            prompt, asked = prompt_of(name)
            results[run] = logits_with_images(decoder, whole.media, prompt, rows, images, asked)
            results[f"{run} rows"] = rows
            results[f"{run} share"] = np.asarray(largest_share(encoder))
        except Exception:
            results[f"{run} error"] = np.asarray(traceback.format_exc())
    np.savez(path, **results)


if __name__ == "__main__":
    main()
