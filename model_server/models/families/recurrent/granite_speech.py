"""Granite Speech: Granite beside a conformer that hears; an adapter of its own answers sounds.

A frame is two of a spectrogram, 20 ms. The conformer's layers see the frames of a block and,
through convolutions, those beside them, so that a sound is encoded whole; half way its predictions
of letters are added. A Q-Former makes each window of frames a few vectors.

Source: Saon et al. 2025 (arXiv:2505.08699), Gulati et al. 2020 (arXiv:2005.08100), Shaw et al.
2018 (arXiv:1803.02155); names and config keys are those of Hugging Face's
`GraniteSpeechForConditionalGeneration` and, whose projector also reads layers in the middle,
`GraniteSpeechPlusForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import ADAPTERS, AUDIO, FEATURES, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.around import Configure, around, with_own_adapters
from model_server.models.families.dense import granite
from model_server.models.families.recurrent import granitemoehybrid
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.layers import Branches, LayerNorm, Linear
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.projector import FormerSizes, WindowProjector, dense_layer
from model_server.models.media.tower_layer import (
    DepthwiseConvolution,
    PointwiseConvolution,
    before,
    dense,
    heads_axis,
    plain_ffw,
)
from model_server.models.media.whisper_encoders import TOKEN, sound_settings
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import HOP, RATE
from model_server.sharing.audio.spectrogram import FINE_LEAST, htk_spectrogram
from sax.errors import CheckpointError, InvalidRequest

_PROJECTOR = "projector_config"
_RATE, _WINDOW = "downsample_rate", "window_size"
_KEYS = (AUDIO, FEATURES, PREPROCESSOR, *TOKEN, _PROJECTOR, _RATE, _WINDOW)
_SOUND_TOKEN, _SOFT, _TOWER = 49155, "<|audio|>", "audio_tower"
_STACKED = 2  # frames of a spectrogram that become one of the encoder
_LONGEST_S = 120  # of a sound: the memory of a step that encodes it grows with it
_LEAST = 750  # frames of the shortest compiled sound, 15 s
_EPSILON = 1e-5  # of norms
_TOWER_KEYS = KnownKeys(
    "granite_speech_encoder",
    (
        *("cat_hidden_layers", "context_size", "conv_expansion_factor", "conv_kernel_size"),
        *("dim_head", "feedforward_mult", "hidden_dim", "input_dim", "max_pos_emb", "num_heads"),
        *("num_layers", "output_dim"),
    ),
    ignored("dropout"),
)
_TOWER_SIZES = {
    **{"context_size": 200, "conv_expansion_factor": 2, "conv_kernel_size": 15},
    **{"feedforward_mult": 4, "hidden_dim": 1024, "input_dim": 160, "max_pos_emb": 512},
    **{"num_heads": 8, "num_layers": 10, "output_dim": 42},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerSizes:
    inputs: int  # two frames of a spectrogram
    embed: int
    layers: int
    heads: int
    head_dim: int
    ffw: int
    inner: int  # channels of convolutions
    width: int  # of convolutions
    block: int  # frames that see each other
    distances: int  # that are told apart each way
    letters: int
    joined: tuple[int, ...]  # layers that the projector reads beside the last one; 0: before them

    @classmethod
    def from_hf(cls, keys: ConfigKeys) -> TowerSizes:
        """Parse `encoder_config`. Raises CheckpointError for unsupported settings."""
        embed, heads = keys.whole("hidden_dim"), keys.whole("num_heads")
        block, distances = keys.whole("context_size"), keys.whole("max_pos_emb")
        if block > distances:
            raise CheckpointError(
                f"encoder_config has context_size = {block}, more than the {distances} distances "
                "of max_pos_emb"
            )
        layers, inputs = keys.whole("num_layers"), keys.whole("input_dim")
        if inputs % _STACKED:
            raise CheckpointError(
                f"encoder_config has input_dim = {inputs}; it must be even: two frames of a "
                "spectrogram"
            )
        return cls(
            inputs=inputs,
            embed=embed,
            layers=layers,
            heads=heads,
            head_dim=keys.whole("dim_head", max(1, embed // heads)),
            ffw=embed * keys.whole("feedforward_mult"),
            inner=embed * keys.whole("conv_expansion_factor"),
            width=keys.whole("conv_kernel_size"),
            block=block,
            distances=distances,
            letters=keys.whole("output_dim"),
            joined=_joined_layers(keys.get("cat_hidden_layers", []), layers),
        )


def _joined_layers(given: Any, layers: int) -> tuple[int, ...]:
    if not isinstance(given, list) or any(type(n) is not int or not 0 <= n < layers for n in given):
        raise CheckpointError(
            f"encoder_config has cat_hidden_layers = {given!r}; give numbers of its {layers} "
            "layers, from 0: what the first one takes in"
        )
    return tuple(sorted(set(given)))


def _norm(size: int, name: str, epsilon: float = _EPSILON) -> LayerNorm:
    return LayerNorm(size, *dense(name), epsilon=epsilon)


class BlockwiseAttention(nnx.Module):
    """Frames of a block see each other, and how far apart they are (Shaw et al. 2018)."""

    def __init__(self, sizes: TowerSizes, name: str, form: WeightForm) -> None:
        inner, axis = sizes.heads * sizes.head_dim, heads_axis(sizes.heads, form)
        both = Tensor(f"{name}.to_kv.weight")
        self.sizes = sizes
        self.norm = _norm(sizes.embed, f"{name}.pre_norm")
        self.qkv = Branches(
            [inner] * 3,
            sizes.embed,
            [(axis, "embed")] * 3,
            [
                (f"{name}.to_q.weight",),
                cut(both, 0, inner, of=2 * inner),
                cut(both, inner, 2 * inner, of=2 * inner),
            ],
            form=form,
        )
        kernel, bias = dense(f"{name}.to_out")
        self.out = Linear(sizes.embed, inner, ("embed", axis), kernel, form=form, bias=bias)
        self.distances = weight(
            (2 * sizes.distances + 1, sizes.head_dim),
            (None, None),
            (f"{name}.rel_pos_emb.weight",),
            dtype=form.dtype,
            spread=0.02,
        )

    def __call__(self, x: jax.Array, there: jax.Array) -> jax.Array:
        """Maps f32[N * C, D] to the same: blocks of C frames. there: bool[N, C]"""
        sizes, dtype = self.sizes, self.distances.get_value().dtype
        shape = (*there.shape, sizes.heads, sizes.head_dim)
        q, k, v = (part.astype(dtype).reshape(shape) for part in self.qkv(self.norm(x)))
        at = np.arange(sizes.block)
        apart = self.distances[...][at[:, None] - at[None] + sizes.distances]  # [C, C, Q]
        wide = {"preferred_element_type": jnp.float32}
        scores = jnp.einsum("nchq,nrhq->nhcr", q, k, **wide)
        scores += jnp.einsum("nchq,crq->nhcr", q, apart, **wide)
        scores = jnp.where(there[:, None, None], scores * sizes.head_dim**-0.5, -1e30)
        weights = jax.nn.softmax(scores, axis=-1).astype(dtype)
        mixed = jnp.einsum("nhcr,nrhq->nchq", weights, v, **wide)
        return self.out(mixed.reshape(len(x), -1))


class FrameNorm(nnx.Module):
    """The batch norm of a channel as it was trained: its mean and variance are the checkpoint's."""

    def __init__(self, size: int, name: str, epsilon: float = _EPSILON) -> None:
        def vector(part: str, spread: float | None) -> nnx.Param:
            return weight((size,), (None,), (f"{name}.{part}",), dtype=jnp.float32, spread=spread)

        self.scale, self.variance = vector("weight", None), vector("running_var", None)
        self.bias, self.mean = vector("bias", 0.0), vector("running_mean", 0.0)
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[S, P, C] to the same."""
        scale = self.scale[...] * jax.lax.rsqrt(self.variance[...] + self.epsilon)
        mean, scale, bias = (each[None, None] for each in (self.mean[...], scale, self.bias[...]))
        return (x - mean) * scale + bias


class FrameConvolutions(nnx.Module):
    """Widens each frame, mixes it with those beside it, and narrows it again."""

    def __init__(self, sizes: TowerSizes, name: str, form: WeightForm) -> None:
        inner, width = sizes.inner, sizes.width
        self.norm = _norm(sizes.embed, f"{name}.norm")
        self.up = PointwiseConvolution(2 * inner, sizes.embed, f"{name}.up_conv", form)
        self.mixing = DepthwiseConvolution(
            inner, width, width // 2, f"{name}.depth_conv.conv", biased=False
        )
        self.middle = FrameNorm(inner, f"{name}.batch_norm")
        self.down = PointwiseConvolution(sizes.embed, inner, f"{name}.down_conv", form)

    def __call__(self, x: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S * P, D] to the same; behind the lengths i32[S] is silence."""
        passed, opening = jnp.split(self.up(self.norm(x)), 2, axis=-1)
        wide = (passed * jax.nn.sigmoid(opening)).reshape(len(lengths), -1, passed.shape[-1])
        mixed = jax.nn.silu(self.middle(self.mixing(before(wide, lengths))))
        return self.down(mixed.reshape(len(x), -1))


class BlockConformerLayer(nnx.Module):
    def __init__(self, sizes: TowerSizes, name: str, form: WeightForm) -> None:
        norms = [_norm(sizes.embed, f"{name}.{part}.pre_norm") for part in ("ff1", "ff2")]
        ffws = [
            plain_ffw(
                sizes.embed,
                sizes.ffw,
                f"{name}.{part}.up_proj",
                f"{name}.{part}.down_proj",
                jax.nn.silu,
                form,
            )
            for part in ("ff1", "ff2")
        ]
        (self.before_first, self.before_last), (self.first, self.last) = norms, ffws
        self.attention = BlockwiseAttention(sizes, f"{name}.attn", form)
        self.convolutions = FrameConvolutions(sizes, f"{name}.conv", form)
        self.norm = _norm(sizes.embed, f"{name}.post_norm")

    def __call__(self, x: jax.Array, there: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S * P, D] to the same. there: bool[N, C], of blocks. lengths: i32[S]"""
        x = x + 0.5 * self.first(self.before_first(x))
        x = x + self.attention(x, there)
        x = x + self.convolutions(x, lengths)
        return self.norm(x + 0.5 * self.last(self.before_last(x)))


class BlockConformer(nnx.Module):
    """Maps frames to vectors of each, with those of some layers beside each other."""

    def __init__(self, sizes: TowerSizes, form: WeightForm) -> None:
        self.sizes = sizes
        self.inwards = dense_layer(sizes.embed, sizes.inputs, f"{_TOWER}.input_linear", form)
        names = (f"{_TOWER}.layers.{index}" for index in range(sizes.layers))
        self.layers = nnx.List([BlockConformerLayer(sizes, name, form) for name in names])
        self.letters = dense_layer(sizes.letters, sizes.embed, f"{_TOWER}.out", form)
        self.back = dense_layer(sizes.embed, sizes.letters, f"{_TOWER}.out_mid", form)

    def __call__(self, frames: jax.Array, lengths: jax.Array) -> jax.Array:
        """Maps f32[S, P, inputs] to f32[S, P, D * (1 + joined)]."""
        sounds, count, _ = frames.shape
        block = self.sizes.block
        padded = jnp.pad(frames, ((0, 0), (0, -count % block), (0, 0)))
        there = jnp.arange(padded.shape[1])[None] < lengths[:, None]
        x, kept = self.inwards(padded.reshape(-1, frames.shape[-1])), list[jax.Array]()
        for index, layer in enumerate(self.layers):
            if index in self.sizes.joined:
                kept.append(x)
            x = layer(x, there.reshape(-1, block), lengths)
            if index + 1 == len(self.layers) // 2:
                x = x + self.back(jax.nn.softmax(self.letters(x), axis=-1))
        made = jnp.concatenate([*kept, x], axis=-1)
        return made.reshape(sounds, -1, made.shape[-1])[:, :count]


class SpeechEncoder(nnx.Module):
    """A MediaEncoder: frames f32[S, P, inputs], 20 ms each."""

    def __init__(
        self, tower: TowerSizes, former: FormerSizes, embed: int, scale: float, form: WeightForm
    ) -> None:
        self.scale = scale
        self.tower = BlockConformer(tower, form)
        self.projector = WindowProjector(former, embed, form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        return self.scale * self.projector(before(self.tower(pieces, lengths), lengths))


def _media_of(keys: ConfigKeys, embed: int, scale: float) -> MediaRecipe | None:
    """Return the recipe of the audio encoder; None: the checkpoint has none.

    embed: of the language model. scale: of its embeddings, and so of these vectors. Raises
    CheckpointError.
    """
    if keys.get(AUDIO) is None:
        return None
    tower = TowerSizes.from_hf(ConfigKeys(_object(keys, AUDIO), _TOWER_KEYS, _TOWER_SIZES))
    window, shorter = keys.whole(_WINDOW, 15), keys.whole(_RATE, 5)
    if window % shorter:
        raise CheckpointError(
            f"config.json has window_size = {window}: it must be a multiple of downsample_rate = "
            f"{shorter}, so that a window becomes a whole number of vectors"
        )
    former = FormerSizes.from_hf(_object(keys, _PROJECTOR), window, window // shorter)
    if former.inputs != tower.embed * (1 + len(tower.joined)):
        raise CheckpointError(
            f"projector_config has encoder_hidden_size = {former.inputs}; the encoder's vectors "
            f"have {tower.embed * (1 + len(tower.joined))} numbers"
        )
    _check_features(sound_settings(keys), tower.inputs // _STACKED, window, shorter)
    token = next((key for key in TOKEN if keys.get(key) is not None), TOKEN[0])
    batch_norms = (f"{_TOWER}.layers.{at}.conv.batch_norm" for at in range(tower.layers))
    return MediaRecipe(
        kind="audio",
        build=lambda form: SpeechEncoder(tower, former, embed, scale, form),
        form=None,
        prepare=lambda samples: _prepared(tower, former, samples),
        placeholder=_SOFT,
        token=keys.whole(token, _SOUND_TOKEN, least=0),
        piece=tower.inputs,
        columns=1,
        per_row=shorter,
        width=embed,
        pieces=doubling(_LONGEST_S * RATE // HOP // _STACKED, window, _LEAST),
        seconds=_LONGEST_S,
        unused=tuple(f"{name}.num_batches_tracked" for name in batch_norms),
    )


def _object(keys: ConfigKeys, key: str) -> Mapping[str, Any]:
    given = keys.get(key, {})
    if not isinstance(given, Mapping):
        name = "encoder_config" if key == AUDIO else key
        raise CheckpointError(f"config.json has {name} = {given!r}; it must be an object")
    return cast("Mapping[str, Any]", given)


def _check_features(given: Mapping[str, Any], bins: int, window: int, shorter: int) -> None:
    """Raise CheckpointError for a spectrogram or a number of vectors that are not computed."""
    wanted = {"hop_length": HOP, "n_fft": 512, "win_length": 400}
    mels = given.get("melspec_kwargs") or {}
    settings = {
        **{"feature_size": bins, "n_mels": bins, "sampling_rate": RATE, **wanted},
        **{"projector_window_size": window, "projector_downsample_rate": shorter},
    }
    found = {**(mels if isinstance(mels, Mapping) else {}), **given}
    for key, value in settings.items():
        if found.get(key, value) != value:
            raise CheckpointError(
                f"preprocessor_config.json has {key} = {found[key]!r}; with this config.json it "
                f"must be {value!r}"
            )


def _prepared(tower: TowerSizes, former: FormerSizes, samples: np.ndarray) -> PreparedMedia:
    """Return the frames of samples f32[n] at 16 kHz. Raises InvalidRequest for too many or few."""
    if len(samples) > _LONGEST_S * RATE:
        raise InvalidRequest(
            f"the sound is too long ({len(samples) / RATE:,.1f} s): this model takes at most "
            f"{_LONGEST_S} s of each; send it in parts"
        )
    if len(samples) < FINE_LEAST:
        raise InvalidRequest("the sound is too short: this model takes at least 17 ms")
    made = htk_spectrogram(samples, tower.inputs // _STACKED)
    pieces = made[: len(made) // _STACKED * _STACKED].reshape(-1, tower.inputs)
    pieces = pieces[: _LONGEST_S * RATE // HOP // _STACKED]
    rows = -(-len(pieces) // former.window) * former.queries
    places = np.zeros((len(pieces), 1), np.int32)
    return PreparedMedia(pieces, places, None, rows, _SOFT * rows)


_HAS_ADAPTER = "has_lora_adapter"
_FOLDERS = {"audio": ""}


def _unscaled(configure: Configure) -> Configure:
    """Build a text model whose logits are not divided by logits_scaling.

    So does transformers 5.24: its GraniteSpeechForConditionalGeneration has the text model without
    its head (AutoModel) and a head of its own, of which it takes the logits as they are; the text
    model's GraniteForCausalLM would divide them. Greedy answers are the same either way.
    """
    return lambda config, values: configure({**(config or {}), "logits_scaling": 1.0}, values)


_TEXTS: Mapping[str, tuple[Configure, Mapping[str, Any]]] = {
    "granite": (_unscaled(granite.configure), {}),
    "granitemoehybrid": (_unscaled(granitemoehybrid.configure), {}),
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    assert config is not None, "the registry says that granite_speech needs a checkpoint"
    own = (ADAPTERS, _HAS_ADAPTER)

    def media(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
        return _media_of(keys, embed, config.get("embedding_multiplier") or 1.0)

    recipe = around("granite_speech", config, values, _TEXTS, _KEYS, media, own)
    adapters = config.get(ADAPTERS, {})
    if recipe.media and not adapters and config.get(_HAS_ADAPTER) is not False:
        raise CheckpointError(
            f"config.json has {_HAS_ADAPTER} = true, and no adapter_config.json lies beside it: "
            "without its adapter the model answers sounds wrongly; put adapter_config.json and "
            "adapter_model.safetensors there, or publish it with SOUNDS=false"
        )
    return with_own_adapters(recipe, adapters, _FOLDERS)


FAMILY = Family(
    "granite_speech",
    ("granite_speech", "granite_speech_plus"),
    "Granite Speech",
    configure,
    own_types_only=True,
)
