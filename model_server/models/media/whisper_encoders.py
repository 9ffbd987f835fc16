"""The encoder of Whisper beside a language model, as Qwen2-Audio and Voxtral have it.

Spectrograms in, a vector for 20 ms each; then Qwen2-Audio averages pairs and projects them, and
Voxtral projects each four of them together.

Sources: Radford et al. 2022 (arXiv:2212.04356), Chu et al. 2024 (arXiv:2407.10759), Liu et al. 2025
(arXiv:2507.13264); names and config keys are those of Hugging Face's
`Qwen2AudioForConditionalGeneration` and `VoxtralForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, FEATURES, PREPROCESSOR
from model_server.models.audio.whisper import gelu_convolved
from model_server.models.audio.whisper_weights import LinearArrays
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.layers import (
    Branches,
    LayerNorm,
    Linear,
    LiveRows,
    live_of,
    run_layer,
)
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.projector import PROJECTOR_KEYS, Projector
from model_server.models.media.tower_layer import (
    TowerAttention,
    TowerLayer,
    dense,
    heads_axis,
    plain_ffw,
)
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import HOP, RATE
from model_server.sharing.audio.spectrogram import spectrogram
from sax.errors import CheckpointError, InvalidRequest


class TowerNames(NamedTuple):
    """Keys of a config under which the sizes of its tower stand."""

    kind: str
    embed: str
    heads: str
    ffw: str
    layers: str
    # Training; the reference reads the scale and does not apply it; others repeat a number.
    harmless: tuple[str, ...]
    own: tuple[str, ...] = ()  # keys of its own, which are read apart


_SIZES = {"embed": 1280, "heads": 20, "ffw": 5120, "layers": 32}
_OTHERS = {"activation_function": "gelu", "max_source_positions": 1500, "num_mel_bins": 128}
_QWEN = TowerNames(
    "qwen2_audio_encoder",
    "d_model",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    ("activation_dropout", "dropout", "encoder_layerdrop", "init_std", "scale_embedding")
    + ("num_hidden_layers",),
)
_VOXTRAL = TowerNames(
    "voxtral_encoder",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "num_hidden_layers",
    ("activation_dropout", "dropout", "layerdrop", "scale_embedding", "vocab_size")
    + ("head_dim", "num_key_value_heads"),
)
_EPSILON = 1e-5  # of every norm
_WIDTH = 3  # frames of a convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTowerConfig:
    bins: int  # of the spectrogram
    embed: int
    heads: int
    ffw: int
    layers: int
    positions: int  # of 20 ms each
    activation: Activation

    @property
    def frames(self) -> int:
        """Frames of 10 ms of the longest sound."""
        return 2 * self.positions

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], names: TowerNames) -> AudioTowerConfig:
        """Parse `audio_config`. Raises CheckpointError for unsupported settings."""
        sizes = {getattr(names, size): usual for size, usual in _SIZES.items()}
        known = KnownKeys(names.kind, (*sizes, *_OTHERS, *names.own), ignored(*names.harmless))
        keys = ConfigKeys(config, known, sizes | _OTHERS)
        heads, embed = keys.whole(names.heads), keys.whole(names.embed)
        if embed % heads:
            raise CheckpointError(
                f"audio_config has {names.embed} = {embed} and {heads} attention heads; give a "
                "number of heads that divides it"
            )
        return cls(
            bins=keys.whole("num_mel_bins"),
            embed=embed,
            heads=heads,
            ffw=keys.whole(names.ffw),
            layers=keys.whole(names.layers),
            positions=keys.whole("max_source_positions", least=2),
            activation=activation_of(keys.get("activation_function")),
        )


def layer_norm(size: int, name: str) -> LayerNorm:
    return LayerNorm(size, *dense(name), epsilon=_EPSILON)


class AudioAttention(TowerAttention):
    """Keys have no bias, so they are projected alone."""

    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        size, self.heads = config.embed, config.heads
        axis = heads_axis(config.heads, form)
        parts = [dense(f"{prefix}.{part}_proj") for part in "qv"]
        self.qv = Branches(
            [size] * 2,
            size,
            [(axis, "embed")] * 2,
            [kernel for kernel, _ in parts],
            form=form,
            biases=[bias for _, bias in parts],
        )
        self.k = Linear(size, size, (axis, "embed"), (f"{prefix}.k_proj.weight",), form=form)
        kernel, bias = dense(f"{prefix}.out_proj")
        self.out = Linear(size, size, ("embed", axis), kernel, form=form, bias=bias)
        self.live: LiveRows = nnx.data(None)

    def branches(self, x: jax.Array) -> Sequence[jax.Array]:
        queries, values = self.qv(x)
        return queries, self.k(x), values


def audio_layer(
    config: AudioTowerConfig, prefix: str, form: WeightForm, attention: TowerAttention | None = None
) -> TowerLayer:
    """attention: None: that of Whisper."""
    up, down = f"{prefix}.fc1", f"{prefix}.fc2"
    return TowerLayer(
        layer_norm(config.embed, f"{prefix}.self_attn_layer_norm"),
        attention or AudioAttention(config, f"{prefix}.self_attn", form),
        layer_norm(config.embed, f"{prefix}.final_layer_norm"),
        plain_ffw(config.embed, config.ffw, up, down, config.activation, form),
    )


class FrameConvolution(nnx.Module):
    def __init__(self, outputs: int, inputs: int, name: str, form: WeightForm) -> None:
        kernel, bias = dense(name)
        shape = (outputs, inputs, _WIDTH)
        self.live: LiveRows = nnx.data(None)
        self.kernel = weight(shape, (None,) * 3, kernel, dtype=form.dtype, spread=0.02)
        self.bias = weight((outputs,), (None,), bias, dtype=jnp.float32, spread=0.0)

    def __call__(self, x: jax.Array, stride: int) -> jax.Array:
        """Maps f32[S, W, in] to f32[S, W / stride, out]."""
        arrays = LinearArrays(self.kernel.get_value(), self.bias.get_value())
        return gelu_convolved(x, arrays, stride, live_of(self))


class AudioTower(nnx.Module):
    """Maps frames of sounds to a vector for two each."""

    def __init__(self, config: AudioTowerConfig, prefix: str, form: WeightForm) -> None:
        self.first = FrameConvolution(config.embed, config.bins, f"{prefix}.conv1", form)
        self.second = FrameConvolution(config.embed, config.embed, f"{prefix}.conv2", form)
        self.positions = weight(
            (config.positions, config.embed),
            (None, "embed"),
            (f"{prefix}.embed_positions.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        layers = (f"{prefix}.layers.{index}" for index in range(config.layers))
        self.layers = nnx.List([audio_layer(config, each, form) for each in layers])

    def __call__(self, frames: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, W, bins] to f32[S, W / 2, D], without the last norm.

        lengths: i32[S], of the result: what is behind them is not seen.
        """
        x = self.second(self.first(frames, 1), 2)
        sounds, count, size = x.shape
        x = (x + self.positions[...][:count][None]).reshape(-1, size)
        for layer in self.layers:
            x = run_layer(layer, x, lengths)
        return x.reshape(sounds, count, size)


TOKEN = ("audio_token_id", "audio_token_index")
KEYS = (AUDIO, FEATURES, PREPROCESSOR, *TOKEN)
_SOUND_TOKEN = 151646
_SOFT, _TOWER, _PROJECTOR = "<|AUDIO|>", "audio_tower", "multi_modal_projector.linear"
_PER_ROW = 4  # frames: the second convolution takes every other one, and pairs are averaged
_BESIDE = 2  # frames behind a sound that its last vector is computed from
_LEAST = 500  # frames of the shortest compiled sound


class SoundEncoder(nnx.Module):
    """A MediaEncoder. A piece is a frame; its place is 1 if it is of the sound, and else 0."""

    def __init__(self, config: AudioTowerConfig, embed: int, form: WeightForm) -> None:
        self.tower = AudioTower(config, _TOWER, form)
        self.norm = layer_norm(config.embed, f"{_TOWER}.layer_norm")
        self.projection = Linear(
            embed,
            config.embed,
            ("embed", None),
            (f"{_PROJECTOR}.weight",),
            form=form,
            bias=(f"{_PROJECTOR}.bias",),
        )

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard = self.tower(pieces, jnp.maximum(1, (places[:, :, 0].sum(1) + 1) // 2))
        sounds, count, size = heard.shape
        pairs = heard[:, : count // 2 * 2].reshape(-1, 2, size).mean(1)
        return self.projection(self.norm(pairs)).reshape(sounds, count // 2, -1)


def qwen2_audio_media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    tower = _tower_of(keys, _QWEN)
    if tower is None:
        return None
    token = next((key for key in TOKEN if keys.get(key) is not None), TOKEN[0])
    return MediaRecipe(
        kind="audio",
        build=lambda form: SoundEncoder(tower, embed, form),
        form=None,
        prepare=lambda samples: prepared(tower, samples),
        placeholder=_SOFT,
        token=keys.whole(token, _SOUND_TOKEN, least=0),
        piece=tower.bins,
        columns=1,
        per_row=_PER_ROW,
        width=embed,
        pieces=doubling(tower.frames, _PER_ROW, _LEAST),
        seconds=-(-tower.frames * HOP // RATE),
    )


def sound_settings(keys: ConfigKeys) -> Mapping[str, Any]:
    """Return what a checkpoint says of its sounds, in whichever of its files."""
    return keys.get(FEATURES) or keys.get(PREPROCESSOR, {})


def _tower_of(keys: ConfigKeys, names: TowerNames) -> AudioTowerConfig | None:
    """Return the sizes of the tower; None: there is none. Raises CheckpointError."""
    given = keys.get(AUDIO)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    tower = AudioTowerConfig.from_hf(cast("Mapping[str, Any]", given), names)
    seconds = tower.frames * HOP // RATE
    check_spectrogram(sound_settings(keys), tower.bins, chunk_length=seconds)
    return tower


def prepared(tower: AudioTowerConfig, samples: np.ndarray) -> PreparedMedia:
    """Return the frames of samples f32[n] at 16 kHz. Raises InvalidRequest for too many or few."""
    most, frames = tower.frames * HOP, -(-len(samples) // HOP)
    rows = (frames + 1) // _PER_ROW
    if len(samples) > most:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{most / RATE:g} s of each; send it in parts"
        )
    if not rows:
        raise InvalidRequest("the sound is too short: this model takes at least 30 ms")
    made = spectrogram(np.pad(samples, (0, most - len(samples))), tower.bins)
    pieces = made[: frames + _BESIDE]
    places = (np.arange(len(pieces)) < frames).astype(np.int32)[:, None]
    return PreparedMedia(pieces, places, None, rows, _SOFT * rows)


VOXTRAL_KEYS = (AUDIO, FEATURES, PREPROCESSOR, TOKEN[0], *PROJECTOR_KEYS)
_AUDIO_TOKEN, _AUDIO_TEXT = 24, "[AUDIO]"
_LONGEST_S = 40 * 60  # seconds of a sound, which Voxtral's makers give


class WindowEncoder(nnx.Module):
    """A MediaEncoder of Voxtral: a piece is a frame of a window, which is heard to its end."""

    def __init__(
        self, keys: ConfigKeys, config: AudioTowerConfig, embed: int, form: WeightForm
    ) -> None:
        self.tower = AudioTower(config, _TOWER, form)
        self.norm = layer_norm(config.embed, f"{_TOWER}.layer_norm")
        self.projector = Projector(keys, embed, config.ffw, form, biased=False)
        self.size, self.joined, self.embed = config.embed, config.ffw, embed

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        sounds, count, _ = pieces.shape
        heard = self.norm(self.tower(pieces, jnp.full(sounds, count // 2)).reshape(-1, self.size))
        return self.projector(heard.reshape(-1, self.joined)).reshape(sounds, -1, self.embed)


def voxtral_media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    tower = _tower_of(keys, _VOXTRAL)
    if tower is None:
        return None
    together, rest = divmod(tower.ffw, tower.embed)
    if rest or tower.positions % together:
        raise CheckpointError(
            f"audio_config has intermediate_size = {tower.ffw}: it must be a multiple of "
            f"hidden_size = {tower.embed}, and the multiple divide max_source_positions = "
            f"{tower.positions}, because so many vectors are projected together"
        )
    token = keys.whole(TOKEN[0], _AUDIO_TOKEN, least=0)
    return MediaRecipe(
        kind="audio",
        build=lambda form: WindowEncoder(keys, tower, embed, form),
        form=None,
        prepare=lambda samples: windows_of(tower, samples),
        placeholder=_AUDIO_TEXT,
        token=token,
        piece=tower.bins,
        columns=1,
        per_row=2 * together,
        width=embed,
        pieces=(tower.frames,),
        seconds=_LONGEST_S,
        counted=f"for each {tower.frames * HOP / RATE:g} s",
    )


def windows_of(tower: AudioTowerConfig, samples: np.ndarray) -> PreparedMedia:
    """Return the windows of samples f32[n] at 16 kHz, the last one filled with silence.

    The spectrogram is that of the whole sound: its loudest place sets the floor of every window.
    Raises InvalidRequest for a sound without samples, or a longer one than models take.
    """
    window, together = tower.frames * HOP, tower.ffw // tower.embed
    if not len(samples):
        raise InvalidRequest("the sound has no samples: send one with some")
    if len(samples) > _LONGEST_S * RATE:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{_LONGEST_S // 60} minutes of each; send it in parts"
        )
    made = spectrogram(np.pad(samples, (0, -len(samples) % window)), tower.bins)
    places, rows = np.ones((tower.frames, 1), np.int32), tower.positions // together
    first, *after = (
        PreparedMedia(frames, places, None, rows, _AUDIO_TEXT * rows)
        for frames in made.reshape(-1, tower.frames, tower.bins)
    )
    return first._replace(after=tuple(after))


def check_spectrogram(given: Mapping[str, Any], bins: int, **own: Any) -> None:
    """Raise CheckpointError for a spectrogram of another kind; own: what else is wanted."""
    wanted: dict[str, Any] = {
        **own,
        "dither": 0.0,
        "do_normalize": False,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": bins,
        "hop_length": HOP,
        "n_fft": 400,
        "sampling_rate": RATE,
    }
    for key, value in wanted.items():
        if given.get(key, value) != value:
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {given[key]!r}; models with audio input "
                f"are served with {value!r}"
            )
