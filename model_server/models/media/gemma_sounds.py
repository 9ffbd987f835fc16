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
from typing import Any, cast

import numpy as np

from model_server.checkpoints.media_part import AUDIO, FEATURES, PREPROCESSOR
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import Harmless, KnownKeys, ignored
from model_server.models.layers.activations import activation_of
from model_server.models.media.conformer import (
    ConformerShape,
    Gemma3nSounds,
    Gemma4Sounds,
    Halving,
    LayerNames,
    OwnTokens,
)
from model_server.models.media.media_recipe import MediaRecipe, PreparedMedia, doubling
from model_server.models.media.whisper_encoders import sound_settings
from model_server.sharing.audio.process import RATE
from model_server.sharing.audio.spectrogram import MelForm, mel_frames
from sax.errors import CheckpointError, InvalidRequest

SOUND_KEYS = (AUDIO, FEATURES, PREPROCESSOR, "audio_token_id")
SOUND_KEYS_3N = (*SOUND_KEYS, "audio_soft_tokens_per_image", "boa_token_id", "eoa_token_id")
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
_MOST_BINS = 1024
_MEL_3N: Mapping[str, Any] = {
    **{"fft_overdrive": True, "frame_length_ms": 32.0, "max_frequency": 7600.0},
    **{"mel_floor": 1e-5, "min_frequency": 125.0, "preemphasis": 0.97},
}
_MEL_4: Mapping[str, Any] = {
    **{"fft_overdrive": False, "frame_length_ms": 20.0, "max_frequency": 8000.0},
    **{"mel_floor": 1e-3, "min_frequency": 0.0, "preemphasis": 0.0},
}


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
    form = _mel_form_3n(sound_settings(keys), shape.bins)
    # Whole fillings with no more frames than become so many vectors.
    most = (ids.soft * per_row * form.hop + form.frame) // _FILLED * _FILLED
    most = min(most, _LONGEST)

    def prepare(samples: np.ndarray) -> PreparedMedia:
        filled = np.pad(samples, (0, -len(samples) % _FILLED))
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
    form, width = _mel_form_4(sound_settings(keys)), own.whole("output_proj_dims")
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


def _mel_form_3n(given: Mapping[str, Any], bins: int) -> MelForm:
    """Return the form that Gemma 3n's preprocessor_config.json says. Raises CheckpointError."""
    return _mel_form(given, _MEL_3N, bins)


def _mel_form_4(given: Mapping[str, Any]) -> MelForm:
    """As `_mel_form_3n`, of Gemma 4, whose config.json does not say the bins."""
    bins = given.get("feature_size", 128)
    if type(bins) is not int or not 1 <= bins <= _MOST_BINS:
        raise CheckpointError(_wrong("feature_size", bins, f"a number from 1 to {_MOST_BINS}"))
    return _mel_form(given, _MEL_4, bins)


def _mel_form(given: Mapping[str, Any], usual: Mapping[str, Any], bins: int) -> MelForm:
    """Return the spectrogram that a checkpoint says its sounds become. Raises CheckpointError.

    usual: the values of what it does not say. frame_length, hop_length and fft_length, which
    published files have, too, follow from others and are not read, as in transformers.
    """
    fixed = {"dither": 0.0, "feature_size": bins, "padding_side": "right", "padding_value": 0.0}
    for key, value in {**fixed, "sampling_rate": RATE}.items():
        if given.get(key, value) != value:
            raise CheckpointError(_wrong(key, given[key], repr(value)))
    number = {
        key: _number(given, key, value) for key, value in usual.items() if type(value) is float
    }
    frame = round(RATE * number["frame_length_ms"] / 1000)
    hop = round(RATE * _number(given, "hop_length_ms", 10.0) / 1000)
    low, high = number["min_frequency"], number["max_frequency"]
    if frame < 2 or hop < 1 or not 0 <= low < high:
        raise CheckpointError(
            f"preprocessor_config.json describes frames of {frame} samples, {hop} apart, from "
            f"{low} to {high} Hz: give longer ones, and frequencies that ascend"
        )
    fft = 2 ** math.ceil(math.log2(frame))
    return MelForm(
        bins=bins,
        frame=frame,
        hop=hop,
        fft=fft * (2 if _flag(given, "fft_overdrive", usual["fft_overdrive"]) else 1),
        low=low,
        high=high,
        emphasis=number["preemphasis"],
        first_kept=_flag(given, "preemphasis_htk_flavor", True),
        floor=number["mel_floor"],
        floor_added=usual is _MEL_4,
        scale=_number(given, "input_scale_factor", 1.0),
        mean=_bins(given, "per_bin_mean", bins),
        deviation=_bins(given, "per_bin_stddev", bins),
    )


def _number(given: Mapping[str, Any], key: str, usual: float) -> float:
    value = given.get(key, usual)
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise CheckpointError(_wrong(key, value, "a number from 0"))
    return float(value)


def _flag(given: Mapping[str, Any], key: str, usual: bool) -> bool:
    value = given.get(key, usual)
    if type(value) is not bool:
        raise CheckpointError(_wrong(key, value, "true or false"))
    return value


def _bins(given: Mapping[str, Any], key: str, bins: int) -> tuple[float, ...]:
    """Return a number of each bin; (): none is given. Raises CheckpointError."""
    value = given.get(key)
    if value is None:
        return ()
    try:
        made = np.asarray(value, np.float64).reshape(bins)
    except (TypeError, ValueError):
        raise CheckpointError(_wrong(key, value, f"{bins} numbers or null")) from None
    return tuple(map(float, made))


def _wrong(key: str, value: object, wanted: str) -> str:
    return (
        f"preprocessor_config.json has {key} = {value!r}; this model's sounds are served with "
        f"{wanted}"
    )


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
