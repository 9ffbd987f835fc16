"""Loads a model of sounds: settings, compiled programs, memory plan, then weights."""

from __future__ import annotations

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.loading.audio.audio_batches import AudioBatches
from model_server.loading.audio.audio_programs import AudioPrograms
from model_server.loading.audio.loaded_audio import WAIT_S, LoadedAudio
from model_server.loading.audio.sound_settings import check_sound_settings
from model_server.loading.batch_plan import BatchPlan
from model_server.loading.kinds import AskedModel
from model_server.loading.load_context import LoadContext
from model_server.loading.loaded_batches import ONLY, Batching
from model_server.loading.loaded_model import Report
from model_server.loading.sounds.sound_decoder import check_soundfile
from model_server.loading.weights import mismatches, read_weights
from model_server.models.audio.audio_recipe import AudioClass, AudioRecipe
from model_server.models.audio.speech_tokens import read_speech_tokens
from model_server.models.overrides import apply_overrides
from model_server.models.registry import audio_class
from model_server.sharing.audio.process import SoundForm
from sax.errors import CheckpointError, InvalidRequest
from sax.memory_parts import MemoryParts
from sax.types import ModelSpec


def plan(asked: AskedModel, context: LoadContext, report: Report) -> BatchPlan[LoadedAudio]:
    """Compile the programs of a model that writes down speech.

    Raises CheckpointError, InvalidRequest, and LoadFailed without soundfile.
    """
    check_soundfile()
    spec, checkpoint = asked.spec, asked.checkpoint
    model = audio_class(spec.model_path, asked.config)
    assert model is not None, "the kind was chosen by it"
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

    sizes, minutes = recipe.config, recipe.serving.max_minutes
    return BatchPlan(
        context=context,
        spec=spec,
        layout=layout,
        parts=MemoryParts(
            weights=programs.weight_bytes,
            state=programs.state_bytes,
            workspace=programs.workspace,
        ),
        runner=lambda report: AudioBatches(
            programs, read_weights(recipe.blueprint.declarations, needed, report, layout)
        ),
        loaded=lambda **fields: LoadedAudio(
            tokenizer=checkpoint.tokenizer(),
            tokens=tokens,
            form=SoundForm(sizes.bins, sizes.frames, 60 * minutes),
            frames=sizes.frames,
            context=sizes.context,
            batching={ONLY: Batching(max(programs.sizes), WAIT_S, context.config.queue)},
            **fields,
        ),
    )


def configured(model: AudioClass, spec: ModelSpec, checkpoint: Checkpoint | None) -> AudioRecipe:
    """Return the recipe of a publish. Raises InvalidRequest, CheckpointError."""
    if checkpoint is None:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint, not from None", param="checkpoint"
        )
    values = apply_overrides(model.overridable, spec.overrides, model.path)
    return model.configure(checkpoint.config, values)
