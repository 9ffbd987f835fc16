"""Loads a model of sounds: settings, compiled programs, memory plan, then weights."""

from __future__ import annotations

from collections.abc import Callable

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.loading.audio.audio_programs import AudioPrograms
from model_server.loading.audio.audio_runner import AudioModelRunner
from model_server.loading.audio.sound_settings import check_sound_settings
from model_server.loading.loaded import LoadedAudio
from model_server.loading.memory_plan import FreeMemory
from model_server.loading.sounds.sound_decoder import check_soundfile
from model_server.loading.weights import mismatches, read_weights
from model_server.models.audio.audio_recipe import AudioClass, AudioRecipe
from model_server.models.audio.speech_tokens import read_speech_tokens
from model_server.models.overrides import apply_overrides
from model_server.models.weights.sharding import Layout
from model_server.sharing.audio.process import SoundForm
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec, Progress

Report = Callable[[Progress], None]


def load_audio(
    model: AudioClass,
    spec: ModelSpec,
    checkpoint: Checkpoint | None,
    config: ModelServerConfig,
    free: Callable[[Layout], FreeMemory],
    report: Report,
) -> LoadedAudio:
    """Load a model that writes down speech; free: the memory left on each device of a layout.

    Raises CheckpointError, InvalidRequest, MemoryPlanError, and LoadFailed without soundfile.
    """
    check_soundfile()
    recipe = configured(model, spec, checkpoint)
    assert checkpoint is not None, "`configured` refuses None"
    check_sound_settings(checkpoint.folder, recipe.config)
    needed = recipe.needed(checkpoint)
    if found := next(mismatches(recipe.blueprint.declarations, needed), None):
        raise CheckpointError(found)
    tokens = read_speech_tokens(checkpoint, recipe.config)
    layout = recipe.serving.layout.placed(jax.local_devices())
    programs = AudioPrograms(recipe, tokens, layout)
    programs.compile(report)
    parts = MemoryParts(
        weights=programs.weight_bytes, state=programs.state_bytes, workspace=programs.workspace
    )
    memory = free(layout).reserve(weights=parts.weights, workspace=parts.state + parts.workspace)
    leaves = read_weights(recipe.blueprint.declarations, needed, report, layout)
    runner = AudioModelRunner(programs, leaves)
    runner.warm(report)
    sizes, minutes = recipe.config, recipe.serving.max_minutes
    return LoadedAudio(
        runner=runner,
        tokenizer=checkpoint.tokenizer(),
        tokens=tokens,
        form=SoundForm(sizes.bins, sizes.frames, 60 * minutes),
        frames=sizes.frames,
        context=sizes.context,
        queue=config.queue,
        memory=memory,
        parts=parts,
        devices=layout.mesh.size,
    )


def configured(model: AudioClass, spec: ModelSpec, checkpoint: Checkpoint | None) -> AudioRecipe:
    """Return the recipe of a publish. Raises InvalidRequest, CheckpointError."""
    if checkpoint is None:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint, not from None", param="checkpoint"
        )
    values = apply_overrides(model.overridable, spec.overrides, model.path)
    return model.configure(checkpoint.config, values)
