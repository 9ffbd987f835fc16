"""Sizes of a VITS model, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "vits",
    (
        "depth_separable_channels",
        "depth_separable_num_layers",
        "duration_predictor_filter_channels",
        "duration_predictor_flow_bins",
        "duration_predictor_kernel_size",
        "duration_predictor_num_flows",
        "duration_predictor_tail_bound",
        "ffn_dim",
        "ffn_kernel_size",
        "flow_size",
        "hidden_act",
        "hidden_size",
        "layer_norm_eps",
        "leaky_relu_slope",
        "noise_scale",
        "noise_scale_duration",
        "num_attention_heads",
        "num_hidden_layers",
        "num_speakers",
        "prior_encoder_num_flows",
        "prior_encoder_num_wavenet_layers",
        "resblock_dilation_sizes",
        "resblock_kernel_sizes",
        "sampling_rate",
        "speaker_embedding_size",
        "speaking_rate",
        "upsample_initial_channel",
        "upsample_kernel_sizes",
        "upsample_rates",
        "use_bias",
        "use_stochastic_duration_prediction",
        "vocab_size",
        "wavenet_dilation_rate",
        "wavenet_kernel_size",
        "window_size",
    ),
    # Training, and the encoder of sounds that only training uses.
    ignored(
        "activation_dropout",
        "duration_predictor_dropout",
        "layerdrop",
        "posterior_encoder_num_wavenet_layers",
        "spectrogram_bins",
        "wavenet_dropout",
    ),
)
_RATES = (4_000, 96_000)  # samples a second
_MOST_UPSAMPLING = 4096  # samples of a frame


class Upsampling(NamedTuple):
    """One transposed convolution of the decoder."""

    rate: int
    kernel: int


class ResidualSizes(NamedTuple):
    """One residual block of the decoder."""

    kernel: int
    dilations: tuple[int, ...]


class DurationSizes(NamedTuple):
    """Sizes of the duration predictor."""

    stochastic: bool
    kernel: int
    filters: int  # of the one that is not stochastic
    layers: int  # of each depth-separable stack
    flows: int
    bins: int  # of each spline
    tail: float  # inputs beyond it pass a spline unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class VitsConfig:
    vocab: int
    embed: int
    layers: int
    heads: int
    window: int  # positions to each side with embeddings of their own
    biased: bool  # projections of attention have biases
    ffw: int
    ffw_kernel: int
    activation: Activation
    epsilon: float  # of the encoder's norms
    channels: int  # of the latent frames
    duration: DurationSizes
    flows: int  # coupling layers
    wavenet_layers: int  # of each
    wavenet_kernel: int
    wavenet_dilation: int  # factor from layer to layer
    decoder_channels: int  # of the first layer; half as many after each upsampling
    upsamplings: tuple[Upsampling, ...]
    residuals: tuple[ResidualSizes, ...]
    slope: float  # of leaky rectifiers
    speakers: int
    speaker_embed: int  # 0: one speaker
    rate: int  # samples a second
    speed: float  # 1: as trained
    noise: float  # standard deviations of the latent frames
    duration_noise: float

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> VitsConfig:
        """Parse `config.json`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, KEYS)
        keys.only("depth_separable_channels", 2)
        speakers = keys.whole("num_speakers", 1)
        made = cls(
            vocab=keys.whole("vocab_size", 38),
            embed=keys.whole("hidden_size", 192),
            layers=keys.whole("num_hidden_layers", 6),
            heads=keys.whole("num_attention_heads", 2),
            window=keys.whole("window_size", 4),
            biased=keys.flag("use_bias", True),
            ffw=keys.whole("ffn_dim", 768),
            ffw_kernel=keys.whole("ffn_kernel_size", 3),
            activation=activation_of(keys.get("hidden_act", "relu")),
            epsilon=keys.number("layer_norm_eps", 1e-5),
            channels=keys.whole("flow_size", 192),
            duration=_duration(keys),
            flows=keys.whole("prior_encoder_num_flows", 4),
            wavenet_layers=keys.whole("prior_encoder_num_wavenet_layers", 4),
            wavenet_kernel=_odd(keys, "wavenet_kernel_size", 5),
            wavenet_dilation=keys.whole("wavenet_dilation_rate", 1),
            decoder_channels=keys.whole("upsample_initial_channel", 512),
            upsamplings=_upsamplings(keys),
            residuals=_residuals(keys),
            slope=keys.number("leaky_relu_slope", 0.1),
            speakers=speakers,
            # One that has a single speaker is not conditioned, whatever weights there are for it.
            speaker_embed=keys.whole("speaker_embedding_size", 0, least=0) if speakers > 1 else 0,
            rate=keys.whole("sampling_rate", 16_000),
            speed=_positive(keys, "speaking_rate", 1.0),
            noise=keys.number("noise_scale", 0.667),
            duration_noise=keys.number("noise_scale_duration", 0.8),
        )
        _check(made)
        return made

    @property
    def frame(self) -> int:
        """Samples of one latent frame."""
        samples = 1
        for each in self.upsamplings:
            samples *= each.rate
        return samples


def _duration(keys: ConfigKeys) -> DurationSizes:
    return DurationSizes(
        stochastic=keys.flag("use_stochastic_duration_prediction", True),
        kernel=_odd(keys, "duration_predictor_kernel_size", 3),
        filters=keys.whole("duration_predictor_filter_channels", 256),
        layers=keys.whole("depth_separable_num_layers", 3),
        flows=keys.whole("duration_predictor_num_flows", 4),
        bins=keys.whole("duration_predictor_flow_bins", 10),
        tail=_positive(keys, "duration_predictor_tail_bound", 5.0),
    )


def _upsamplings(keys: ConfigKeys) -> tuple[Upsampling, ...]:
    rates = _wholes("upsample_rates", keys.get("upsample_rates", [8, 8, 2, 2]))
    kernels = _wholes("upsample_kernel_sizes", keys.get("upsample_kernel_sizes", [16, 16, 4, 4]))
    # Another kernel makes more or fewer samples than the rates say.
    pairs = zip(rates, kernels, strict=False)
    fits = all(kernel >= rate and (kernel - rate) % 2 == 0 for rate, kernel in pairs)
    if len(rates) != len(kernels) or not fits:
        raise CheckpointError(
            f"config.json has upsample_rates = {list(rates)} and upsample_kernel_sizes = "
            f"{list(kernels)}; the vits family needs a kernel for each rate, larger by an even "
            "number"
        )
    return tuple(map(Upsampling, rates, kernels))


def _residuals(keys: ConfigKeys) -> tuple[ResidualSizes, ...]:
    kernels = _wholes("resblock_kernel_sizes", keys.get("resblock_kernel_sizes", [3, 7, 11]))
    given = keys.get("resblock_dilation_sizes", [[1, 3, 5]] * 3)
    if not isinstance(given, Sequence) or len(given) != len(kernels):
        raise CheckpointError(
            f"config.json has resblock_dilation_sizes = {given!r}; the vits family needs a list "
            f"for each of the kernels {list(kernels)}"
        )
    if any(kernel % 2 == 0 for kernel in kernels):
        raise CheckpointError(
            f"config.json has resblock_kernel_sizes = {list(kernels)}; the vits family supports "
            "odd ones"
        )
    dilations = (_wholes("resblock_dilation_sizes", each) for each in given)
    return tuple(map(ResidualSizes, kernels, dilations))


def _wholes(key: str, given: Any) -> tuple[int, ...]:
    good = isinstance(given, Sequence) and all(type(each) is int and each > 0 for each in given)
    if not given or not good:
        raise CheckpointError(
            f"config.json has {key} = {given!r}; the vits family needs a list of whole numbers"
        )
    return tuple(given)


def _odd(keys: ConfigKeys, key: str, default: int) -> int:
    value = keys.whole(key, default)
    if value % 2 == 0:
        raise CheckpointError(
            f"config.json has {key} = {value}; the vits family supports odd kernels"
        )
    return value


def _positive(keys: ConfigKeys, key: str, default: float) -> float:
    value = keys.number(key, default)
    if not 0 < value < float("inf"):
        raise CheckpointError(
            f"config.json has {key} = {value!r}; the vits family needs a number above 0"
        )
    return value


def _check(made: VitsConfig) -> None:
    """Raise CheckpointError for sizes that do not go together."""
    steps, rate = 2 ** len(made.upsamplings), made.rate
    wrong = {
        f"hidden_size = {made.embed} and {made.heads} attention heads; give a number of heads that "
        "divides it": made.embed % made.heads != 0,
        f"flow_size = {made.channels}; the vits family halves it": made.channels % 2 != 0,
        f"upsample_initial_channel = {made.decoder_channels}, which cannot be halved by each of "
        f"{len(made.upsamplings)} upsamplings": made.decoder_channels < steps,
        f"upsample_rates whose product is {made.frame}; the vits family supports up to "
        f"{_MOST_UPSAMPLING}": made.frame > _MOST_UPSAMPLING,
        f"sampling_rate = {rate}; the vits family supports {_RATES[0]} to {_RATES[1]}": not (
            _RATES[0] <= rate <= _RATES[1]
        ),
        f"num_speakers = {made.speakers} and no speaker_embedding_size": made.speakers > 1
        and not made.speaker_embed,
        f"duration_predictor_flow_bins = {made.duration.bins}; a spline has at most 1000": (
            made.duration.bins > 1000
        ),
    }
    if found := next((text for text, is_wrong in wrong.items() if is_wrong), None):
        raise CheckpointError(f"config.json has {found}")
