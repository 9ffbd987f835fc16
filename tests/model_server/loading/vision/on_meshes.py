"""Models of images on meshes of fake devices; a process of its own.

    python -m tests.model_server.loading.vision.on_meshes RESULTS.json CASE:8x1x1 ...

RESULTS.json holds, by each of these names, the fields of `_computed`, or an error.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.vision.loaded_vision import LoadedVision
from model_server.loading.vision.vision_loading import VisionBatches
from tests.model_server.loading.vision.images import golden_of, load, pixels_of, write_case
from tests.model_server.many_devices import write_results

SIZES = [3, 8]  # the first is padded to what the mesh divides


def _computed(loader: ModelLoader, case: str, shape: list[int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_case(case, Path(folder) / case)
        loaded: Any = load(loader, checkpoint, BATCH_SIZE=max(SIZES), ICI_MESH_SHAPE=shape)
    assert isinstance(loaded, LoadedVision)
    assert isinstance(loaded.runner, VisionBatches)
    images, compiled = golden_of(case), loader.compiles_while_serving()
    pixels = [pixels_of(images[f"image_{n % 2}"], loaded) for n in range(max(SIZES))]
    seen = [loaded.runner.run(pixels[:size]) for size in SIZES]
    found = {
        "devices": loaded.devices,
        "planned": loaded.parts.weights,
        "held": _held(loaded.runner),
        "scores": [[each.scores.tolist() for each in batch] for batch in seen],
        "vectors": [[each.vector.tolist() for each in batch] for batch in seen],
        "compiled": loader.compiles_while_serving() - compiled,
    }
    loaded.runner.close()
    return found


def _held(runner: VisionBatches) -> list[int]:
    """Bytes of weights on each device."""
    bytes_on: dict[int, int] = {}
    weights = runner._weights  # pyright: ignore[reportPrivateUsage]
    for leaf in jax.tree.leaves(weights):
        for shard in leaf.addressable_shards:
            bytes_on[shard.device.id] = bytes_on.get(shard.device.id, 0) + shard.data.nbytes
    return [*bytes_on.values()]


def main() -> None:
    loader = make_loader(ModelServerConfig())
    write_results(lambda case, shape: _computed(loader, case, shape))
    loader.watch.stop()


if __name__ == "__main__":
    main()
