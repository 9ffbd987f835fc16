"""Sizes of a Whisper model, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, anything, ignored
from model_server.models.layers.activations import Activation, activation_of
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "whisper",
    (
        "activation_function",
        "d_model",
        "decoder_attention_heads",
        "decoder_ffn_dim",
        "decoder_layers",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "encoder_layers",
        "max_source_positions",
        "max_target_positions",
        "num_mel_bins",
        "tie_word_embeddings",
        "vocab_size",
    ),
    {
        "is_encoder_decoder": anything,
        # Training and heads for other tasks; heads that follow the sound are in
        # generation_config.json.
        **ignored("activation_dropout", "alignment_heads", "apply_spec_augment", "chunk_length"),
        **ignored("classifier_proj_size", "decoder_layerdrop", "dropout", "encoder_layerdrop"),
        **ignored("forced_decoder_ids", "init_std", "mask_feature_length", "mask_feature_prob"),
        **ignored("mask_feature_min_masks", "mask_time_length", "mask_time_min_masks"),
        **ignored("mask_time_prob", "median_filter_width", "use_weighted_layer_sum"),
        # Counts both halves' layers in old files, which have a key for each, too.
        **ignored("num_hidden_layers", "scale_embedding"),  # the reference reads neither
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    bins: int  # of the spectrogram
    embed: int
    heads: tuple[int, int]  # of the encoder, of the decoder
    ffw: tuple[int, int]
    layers: tuple[int, int]
    positions: int  # of the encoder: 20 ms each
    context: int  # tokens of the decoder
    vocab: int
    tied: bool  # the output head is the embedding
    activation: Activation

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> WhisperConfig:
        """Parse `config.json`. Raises CheckpointError for unsupported settings."""
        keys = ConfigKeys(config, KEYS)
        made = cls(
            bins=keys.whole("num_mel_bins", 80),
            embed=keys.whole("d_model"),
            heads=(keys.whole("encoder_attention_heads"), keys.whole("decoder_attention_heads")),
            ffw=(keys.whole("encoder_ffn_dim"), keys.whole("decoder_ffn_dim")),
            layers=(keys.whole("encoder_layers"), keys.whole("decoder_layers")),
            positions=keys.whole("max_source_positions", 1500),
            context=keys.whole("max_target_positions", 448, least=16),
            vocab=keys.whole("vocab_size"),
            tied=keys.flag("tie_word_embeddings", True),
            activation=activation_of(keys.get("activation_function", "gelu")),
        )
        for heads in made.heads:
            if made.embed % heads:
                raise CheckpointError(
                    f"config.json has d_model = {made.embed} and {heads} attention heads; give a "
                    "number of heads that divides it"
                )
        return made

    @property
    def frames(self) -> int:
        """Frames of 10 ms of the spectrogram of one window."""
        return 2 * self.positions
