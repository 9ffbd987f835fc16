"""Sounds of Gemma 3n and Gemma 4: their spectrograms, vectors and recipes, around a conformer.

Gemma 3n keeps every fourth vector, and fills each sound to the same number of them with the vector
of a token of its encoder's own vocabulary; that of the token behind a sound is of this vocabulary,
too. Gemma 4 has as many vectors as a sound is long.

Source: Google 2025, "Gemma 3n", and Google 2026, "Gemma 4"; names and config keys are those of
Hugging Face's `Gemma3nForConditionalGeneration` and `Gemma4ForConditionalGeneration`, sizes and
fillings those of their processors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.media_part import AUDIO, FEATURES, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import Harmless, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.layers.layers import Linear, UnitNorm
from model_server.models.media.conformer import (
    Conformer,
    ConformerShape,
    Halving,
    LayerNames,
    conformer_norm,
)
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia
from model_server.models.media.sizes import doubling
from model_server.models.media.whisper_encoders import sound_settings
from model_server.models.weights.weight import WeightForm, weight
from model_server.sharing.audio.process import RATE
from model_server.sharing.audio.spectrogram import mel_form_3n, mel_form_4, mel_frames
from sax.errors import CheckpointError, InvalidRequest

SOUND_KEYS = (AUDIO, FEATURES, PREPROCESSOR, "audio_token_id")
SOUND_KEYS_3N = (*SOUND_KEYS, "audio_soft_tokens_per_image", "boa_token_id", "eoa_token_id")
_EMBEDDER = "embed_audio"
_LONGEST = 30 * RATE  # samples, behind which transformers' feature extractors cut
_FILLED = 128  # samples, of which they fill sounds to a multiple
_LEAST = 500  # frames of the shortest compiled sound
_NAMES_3N = LayerNames(
    "conformer",
    "ffw_layer_start",
    "attention.pre_attn_norm",
    "attention.attn",
    "attention.attn.relative_position_embedding.pos_proj",
    "attention.post",
    "attention.post_norm",
    "ffw_layer_end",
    "norm",
    "",
)
_NAMES_4 = LayerNames(
    "layers",
    "feed_forward1",
    "norm_pre_attn",
    "self_attn",
    "self_attn.relative_k_proj",
    "self_attn.post",
    "norm_post_attn",
    "feed_forward2",
    "norm_out",
    ".linear",
)


_SOFT_3N, _SOFT_4 = "<audio_soft_token>", "<|audio|>"
_OWN_3N = {
    "conf_attention_chunk_size": 12,
    "conf_attention_context_left": 13,
    "conf_attention_context_right": 0,
    "conf_attention_logit_cap": 50.0,
    "conf_conv_kernel_size": 5,
    "conf_num_attention_heads": 8,
    "conf_num_hidden_layers": 12,
    "conf_reduction_factor": 4,
    "conf_residual_weight": 0.5,
    "gradient_clipping": 1e10,
    "hidden_size": 1536,
    "input_feat_size": 128,
    "rms_norm_eps": 1e-6,
    "sscp_conv_channel_size": [128, 32],
    "sscp_conv_group_norm_eps": 1e-3,
    "sscp_conv_kernel_size": [[3, 3], [3, 3]],
    "sscp_conv_stride_size": [[2, 2], [2, 2]],
    "vocab_offset": 262272,
    "vocab_size": 128,
}
# Keys of the first published files that transformers does not read.
_HARMLESS_3N = ignored(
    "conf_attention_invalid_logits_value", "conf_positional_bias_size", "sscp_conv_eps"
)
_OWN_4 = {
    "attention_chunk_size": 12,
    "attention_context_left": 13,
    "attention_context_right": 0,
    "attention_logit_cap": 50.0,
    "conv_kernel_size": 5,
    "gradient_clipping": 1e10,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 12,
    "output_proj_dims": 1536,
    "residual_weight": 0.5,
    "rms_norm_eps": 1e-6,
    "subsampling_conv_channels": [128, 32],
    "use_clipped_linears": True,
}
_HARMLESS_4: Harmless = {
    # Far below every score, which are capped: the numbers are the same.
    "attention_invalid_logits_value": lambda value: type(value) in (int, float) and value <= -1e3,
}


class OwnTokens(NamedTuple):
    """Tokens of the encoder's own vocabulary that stand in the place of a sound."""

    vocab: int
    soft: int  # vectors of a sound and of what fills it
    rows: tuple[int, ...]  # of the table: what fills a sound, and the end of one if it is there
    end: int | None  # the id of the end of a sound; None: it is the language model's

    @property
    def count(self) -> int:
        """Vectors in the place of a sound."""
        return self.soft + len(self.rows) - 1


class Gemma3nSounds(nnx.Module):
    """A MediaEncoder of Gemma 3n: a piece is a frame; its place is 1 if it is of the sound."""

    def __init__(
        self,
        shape: ConformerShape,
        ids: OwnTokens,
        reduction: int,
        embed: int,
        form: WeightForm,
    ) -> None:
        """reduction: places of which one is kept."""
        size = shape.embed
        self.ids, self.reduction, self.together = ids, reduction, shape.together
        self.tower = Conformer(shape, ("conv_0", "conv_1"), form)
        self.table = weight(
            (ids.vocab, size),
            (None, None),
            (f"{_EMBEDDER}.embedding.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        self.of_tokens = conformer_norm(size, f"{_EMBEDDER}.hard_embedding_norm", shape.epsilon)
        self.of_sounds = conformer_norm(size, f"{_EMBEDDER}.soft_embedding_norm", shape.epsilon)
        projection = (f"{_EMBEDDER}.embedding_projection.weight",)
        self.projection = Linear(embed, size, ("embed", None), projection, form=form)
        self.norm = UnitNorm(shape.epsilon)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        heard, there = self.tower(pieces, lengths, places[:, :, 0].sum(1))
        heard, there = heard[:, :: self.reduction], there[:, :: self.reduction]
        vectors = self._projected(self.of_sounds(heard.reshape(-1, heard.shape[-1])))
        filling, *ends = self._projected(
            self.of_tokens(self.table[...][jnp.asarray(self.ids.rows)])
        )
        vectors = vectors.reshape(*there.shape, -1)
        vectors = jnp.where(there[..., None], vectors, filling[None, None])
        return vectors.at[:, self.ids.soft].set(ends[0]) if ends else vectors

    def _projected(self, x: jax.Array) -> jax.Array:
        return self.norm(self.projection(x))


class Gemma4Sounds(nnx.Module):
    """A MediaEncoder of Gemma 4: a piece is a frame; its place is 1."""

    def __init__(self, shape: ConformerShape, width: int, embed: int, form: WeightForm) -> None:
        """width: of the conformer's vectors as the embedder takes them."""
        self.tower = Conformer(shape, ("layer0", "layer1"), form)
        name = "audio_tower.output_proj"
        kernel, bias = (f"{name}.weight",), (f"{name}.bias",)
        self.out = Linear(width, shape.embed, ("embed", None), kernel, form=form, bias=bias)
        self.norm = UnitNorm(shape.epsilon)
        projection = (f"{_EMBEDDER}.embedding_projection.weight",)
        self.projection = Linear(embed, width, ("embed", None), projection, form=form)

    def __call__(self, pieces: jax.Array, places: jax.Array, lengths: jax.Array) -> jax.Array:
        frames = places[:, :, 0].sum(1)
        heard, _ = self.tower(pieces, frames, frames)
        vectors = self.projection(self.norm(self.out(heard.reshape(-1, heard.shape[-1]))))
        return vectors.reshape(*heard.shape[:2], -1)


def gemma3n_sounds(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of Gemma 3n's audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    own = _own(keys, "gemma3n_audio", _OWN_3N, _HARMLESS_3N)
    if own is None:
        return None
    shape, reduction = _shape_3n(own), own.whole("conf_reduction_factor")
    ids = _own_tokens(keys, own)
    per_row = shape.together * reduction
    form = mel_form_3n(sound_settings(keys), shape.bins)
    # Whole fillings with no more frames than become so many vectors.
    most = (ids.soft * per_row * form.hop + form.frame) // _FILLED * _FILLED
    most = min(most, _LONGEST)

    def prepare(samples: np.ndarray) -> PreparedMedia:
        filled = _filled(samples)
        frames = form.frames(len(filled))
        _check_length(len(samples), most, form.frame + 1)
        places = np.arange(frames) * form.hop < len(samples)
        text = f"\n\n<start_of_audio>{_SOFT_3N * ids.soft}<end_of_audio>\n\n"
        made = mel_frames(filled, form)
        return PreparedMedia(made, places.astype(np.int32)[:, None], None, ids.count, text)

    return MediaRecipe(
        kind="audio",
        build=lambda weights: Gemma3nSounds(shape, ids, reduction, embed, weights),
        form=None,
        prepare=prepare,
        placeholder=_SOFT_3N,
        token=keys.whole("audio_token_id", 262273, least=0),
        end=ids.end,
        piece=shape.bins,
        columns=1,
        per_row=per_row,
        width=embed,
        pieces=(ids.count * per_row,),
        seconds=_LONGEST // RATE,
    )


def gemma4_sounds(keys: ConfigKeys, embed: int) -> MediaRecipe | None:
    """Return the recipe of Gemma 4's audio encoder; None: the checkpoint has none.

    embed: of the language model. Raises CheckpointError.
    """
    own = _own(keys, "gemma4_audio", _OWN_4, _HARMLESS_4)
    if own is None:
        return None
    form, width = mel_form_4(sound_settings(keys)), own.whole("output_proj_dims")
    shape = _shape_4(own, form.bins)
    silence = form.frame // 2  # samples in front of a sound

    def prepare(samples: np.ndarray) -> PreparedMedia:
        # The shortest has one frame whose last sample, behind its own, is of the sound.
        _check_length(len(samples), _LONGEST, form.frame + 1 - silence)
        made = mel_frames(np.pad(samples, (silence, 0)), form)
        rows = -(-len(made) // shape.together)
        text = f"<|audio>{_SOFT_4 * rows}<audio|>"
        return PreparedMedia(made, np.ones((len(made), 1), np.int32), None, rows, text)

    return MediaRecipe(
        kind="audio",
        build=lambda weights: Gemma4Sounds(shape, width, embed, weights),
        form=None,
        prepare=prepare,
        placeholder=_SOFT_4,
        token=keys.whole("audio_token_id", 258881, least=0),
        piece=shape.bins,
        columns=1,
        per_row=shape.together,
        width=embed,
        pieces=doubling(form.frames(_LONGEST + silence), shape.together, _LEAST),
        seconds=_LONGEST // RATE,
    )


def _own(
    keys: ConfigKeys, kind: str, defaults: Mapping[str, Any], harmless: Harmless
) -> ConfigKeys | None:
    """Return the keys of audio_config; None: there is none. Raises CheckpointError."""
    given = keys.get(AUDIO)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has audio_config = {given!r}; it must be an object")
    known = KnownKeys(kind, tuple(defaults), harmless)
    return ConfigKeys(cast("Mapping[str, Any]", given), known, defaults)


def _own_tokens(keys: ConfigKeys, own: ConfigKeys) -> OwnTokens:
    """Return the tokens of Gemma 3n's audio encoder. Raises CheckpointError."""
    vocab, first = own.whole("vocab_size"), own.whole("vocab_offset")
    end, filling = keys.whole("eoa_token_id", 262272), keys.whole("vocab_size") - 1
    wanted = {"vocab_size": filling, "eoa_token_id": max(end, first)}
    for key, token in wanted.items():
        if not 0 <= token - first < vocab:
            raise CheckpointError(
                f"config.json has {key} = {keys.get(key)}, and its audio_config vectors of the "
                f"{vocab} tokens from {first} on: the token {token} must be one of them"
            )
    if keys.whole("boa_token_id", 256000) >= first:
        raise CheckpointError(
            f"config.json has boa_token_id = {keys.get('boa_token_id')}: an id below the "
            f"vocab_offset of audio_config, {first}, is supported"
        )
    rows, soft = (filling - first,), keys.whole("audio_soft_tokens_per_image", 188)
    if end < first:
        return OwnTokens(vocab, soft, rows, None)
    return OwnTokens(vocab, soft, (*rows, end - first), end)


def _shape_3n(own: ConfigKeys) -> ConformerShape:
    past = max(0, own.whole("conf_attention_context_left", least=0) - 1)
    future = own.whole("conf_attention_context_right", least=0)
    channels = _pair(own, "sscp_conv_channel_size", _is_size)
    kernels = _pair(own, "sscp_conv_kernel_size", _is_plane)
    strides = _pair(own, "sscp_conv_stride_size", _is_plane)
    first, second = (
        Halving(size, tuple(kernel), tuple(stride), (0, kernel[0] - 1))
        for size, kernel, stride in zip(channels, kernels, strides, strict=True)
    )
    return ConformerShape(
        names=_NAMES_3N,
        bins=own.whole("input_feat_size"),
        halvings=(first, second),
        group_epsilon=own.number("sscp_conv_group_norm_eps"),
        **_sizes(own, "conf_num_attention_heads"),
        layers=own.whole("conf_num_hidden_layers"),
        width=own.whole("conf_conv_kernel_size"),
        chunk=own.whole("conf_attention_chunk_size"),
        past=past,
        future=future,
        behind=past,
        ahead=future,
        positions=(past, -future),
        key_scale=1.0,
        cap=_above_zero(own, "conf_attention_logit_cap"),
        share=own.number("conf_residual_weight"),
        clipped=False,
        activation=activation_of("silu"),
    )


def _shape_4(own: ConfigKeys, bins: int) -> ConformerShape:
    """Return the sizes of the tower, which takes spectrograms of so many bins."""
    past = own.whole("attention_context_left") - 1
    future, chunk = own.whole("attention_context_right", least=0), own.whole("attention_chunk_size")
    channels = _pair(own, "subsampling_conv_channels", _is_size)
    if channels[0] // 4 != (bins + 3) // 4:
        raise CheckpointError(
            f"audio_config has subsampling_conv_channels = {channels!r}, and a spectrogram has "
            f"{bins} bins: the first number must be as large, as the reference counts them"
        )
    first, second = (Halving(size, (3, 3), (2, 2), (1, 1)) for size in channels)
    return ConformerShape(
        names=_NAMES_4,
        bins=bins,
        halvings=(first, second),
        group_epsilon=None,
        **_sizes(own, "num_attention_heads"),
        layers=own.whole("num_hidden_layers"),
        width=own.whole("conv_kernel_size"),
        chunk=chunk,
        past=past,
        future=future,
        # The reference's mask leaves out the furthest place on each side that it reads.
        behind=past - 1,
        ahead=max(0, future - 1),
        positions=((chunk + past + future) // 2, 0),
        key_scale=math.log(1 + math.e) / math.log(2),
        cap=_above_zero(own, "attention_logit_cap"),
        share=own.number("residual_weight"),
        clipped=own.flag("use_clipped_linears"),
        activation=activation_of(own.get("hidden_act")),
    )


def _sizes(own: ConfigKeys, key: str) -> dict[str, Any]:
    """Return what both towers have; key: of the attention heads. Raises CheckpointError."""
    heads, embed = own.whole(key), own.whole("hidden_size")
    if embed % heads or embed % 2:
        raise CheckpointError(
            f"audio_config has hidden_size = {embed} and {heads} attention heads; give an even "
            "number that the heads divide"
        )
    return {
        "embed": embed,
        "heads": heads,
        "clip": _above_zero(own, "gradient_clipping"),
        "epsilon": own.number("rms_norm_eps"),
    }


def _above_zero(own: ConfigKeys, key: str) -> float:
    value = own.number(key)
    if value <= 0:
        raise CheckpointError(f"audio_config has {key} = {value!r}; give a number above 0")
    return value


def _pair(own: ConfigKeys, key: str, fits: Callable[[object], bool]) -> list[Any]:
    """Return the value of each of the two convolutions. Raises CheckpointError."""
    given = own.get(key)
    if not _is_two(given) or not all(map(fits, given)):
        raise CheckpointError(
            f"audio_config has {key} = {given!r}; give one for each of two convolutions, in whole "
            "numbers from 1"
        )
    return list(given)


def _is_two(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(cast("Sequence[object]", value)) == 2


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def _is_plane(value: object) -> bool:
    return _is_two(value) and all(map(_is_size, cast("Sequence[object]", value)))


def _filled(samples: np.ndarray) -> np.ndarray:
    """Return the samples with silence behind them, as transformers fills a sound sent alone."""
    return np.pad(samples, (0, -len(samples) % _FILLED))


def _check_length(samples: int, most: int, least: int) -> None:
    """Raise InvalidRequest for a sound that is too long or too short; most, least: samples."""
    if samples > most:
        raise InvalidRequest(
            f"the sound is too long ({samples / RATE:,.1f} s): this model takes at most "
            f"{most / RATE:g} s of each; send it in parts"
        )
    if samples < least:
        raise InvalidRequest(
            f"the sound is too short: this model takes at least {1000 * least / RATE:.4g} ms"
        )
