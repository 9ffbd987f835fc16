"""Models of sounds on meshes of fake devices; a process of its own.

    python -m tests.model_server.loading.audio.on_meshes RESULTS.json CASE:8x1x1 ...

RESULTS.json holds, by each of these names, the fields of `_computed`, or an error.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.config import ModelServerConfig
from model_server.loading.audio.audio_loading import AudioBatches
from model_server.loading.audio.loaded_audio import LoadedAudio, SpeechWindow, WrittenWindow
from model_server.loading.loaded_batches import ONLY
from model_server.loading.loader import ModelLoader, make_loader
from model_server.models.audio import whisper
from tests.golden.sound_folder import write_case
from tests.model_server.loading.audio.sounds import (
    first_window,
    load,
    mels_of,
    teacher_rows,
    written,
)
from tests.model_server.many_devices import write_results
from tests.tools.golden.sounds import thinned


def _computed(loader: ModelLoader, case: str, shape: list[int]) -> dict[str, Any]:
    rows = max(4, shape[0] * shape[1])
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_case(case, Path(folder) / case)
        given = {"DTYPE": "float32", "BATCH_SIZE": rows, "ICI_MESH_SHAPE": shape}
        loaded: Any = load(loader, checkpoint, **given)
    assert isinstance(loaded, LoadedAudio)
    assert isinstance(loaded.runner, AudioBatches)
    states, logits = _states_and_logits(loaded, case, shape[0] * shape[1], rows)
    compiled = loader.compiles_while_serving()
    found = {
        "devices": loaded.devices,
        "rows": rows,
        "planned": loaded.parts.weights,
        "held": _held(loaded.runner),
        "state": loaded.parts.state,
        "states": thinned(states).tolist(),
        "logits": logits.tolist(),
        "segments": _segments(loaded, case),
        "frames": len(mels_of(case, loaded)),
        "timestamps": loaded.tokens.timestamps,
        "compiled": loader.compiles_while_serving() - compiled,
    }
    loaded.runner.close()
    return found


def _held(runner: AudioBatches) -> list[int]:
    """Bytes of weights on each device."""
    bytes_on: dict[int, int] = {}
    for leaf in runner._leaves:  # pyright: ignore[reportPrivateUsage]
        for shard in leaf.addressable_shards:
            bytes_on[shard.device.id] = bytes_on.get(shard.device.id, 0) + shard.data.nbytes
    return [*bytes_on.values()]


def _states_and_logits(
    loaded: LoadedAudio, case: str, shards: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Of the last of `count` equal windows, which the devices divide."""
    runner: Any = loaded.runner
    recipe = runner._programs.recipe
    config, tokens = recipe.config, teacher_rows(case, count)

    def computed(leaves: Sequence[jax.Array], mels: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = recipe.blueprint.assemble(leaves).arrays()
        states = whisper.encode(config, weights, mels, shards)
        cross = whisper.crossed(config, weights, states)
        cache = whisper.empty_cache(config, np.float32, count)
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x, _ = whisper.decode(config, weights, cross, cache, tokens, places)
        return states, whisper.logits(weights, x)

    mels = np.repeat(first_window(case, loaded)[None], count, 0)
    rows = recipe.serving.layout.placed(jax.local_devices()).rows(count)
    made = jax.jit(computed)(runner._leaves, jax.device_put(mels, rows))
    states, logits = (np.asarray(each) for each in made)
    return states[-1], logits[-1]


def _segments(loaded: LoadedAudio, case: str) -> list[list[float]]:
    """Segments of batches in which every other window is silent."""
    silent = np.zeros((loaded.frames, loaded.form.bins), np.float32)

    def write(window: SpeechWindow) -> WrittenWindow:
        quiet = SpeechWindow(silent, (), window.language, window.task, 0.0, 0, 5, Event())
        answers = loaded.runner.run([window, quiet] * (loaded.batching[ONLY].most // 2))
        assert len({each.tokens for each in answers[::2]}) == 1
        return answers[-2]

    return asyncio.run(written(loaded, case, write, conditioned=True))


def main() -> None:
    loader = make_loader(ModelServerConfig())
    write_results(lambda case, shape: _computed(loader, case, shape))
    loader.watch.stop()


if __name__ == "__main__":
    main()
