"""The keys of config.json that each family understands; any other key ends the load by name.

A key that is not understood may be a factor that the model was trained with: ignoring it would
give wrong answers without a word. A family lists the keys that it computes with and, with the
values for which this is true, those that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sax.errors import CheckpointError

Harmless = Mapping[str, Callable[[Any], bool]]  # key -> whether a value changes nothing

_NAMED = 5  # keys that one error names
_SHOWN = 80  # characters of a value that an error shows


def anything(value: Any) -> bool:
    """The value never matters."""
    return True


def one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def all_in(*values: Any) -> Callable[[Any], bool]:
    """Accepts lists of nothing but `values`."""
    return lambda value: isinstance(value, list) and all(each in values for each in value)


def ignored(*keys: str) -> Harmless:
    return dict.fromkeys(keys, anything)


# Where a config comes from and how it is stored. The dtype is chosen at publish, and
# quantization_config is checked where the weights are read.
_ORIGIN = ignored(
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "dtype",
    "is_llama_config",
    "compression_config",
    "model_type",
    "quantization_config",
    "tf_legacy_loss",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
)
# Token ids and sampling defaults: other code reads the ones that matter.
_GENERATION = ignored(
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "cls_token_id",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "mask_token_id",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "unk_token_id",
    "use_cache",
)
# Used in training only, or read by the loader: how vectors are made, and heads for other tasks.
_TRAINING = ignored(
    "attention_dropout",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "aux_loss_alpha",
    "classifier_dropout",
    "embd_pdrop",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "is_matryoshka",
    "label2id",
    "matryoshka_dimensions",
    "num_labels",
    "output_router_logits",
    "problem_type",
    "resid_pdrop",
    "router_aux_loss_coef",
    "pooling",  # from GGUF files
    "router_jitter_noise",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "seq_aux",
)
# How the product is split, not what it is; and old sizes that were never a limit.
_EXECUTION = ignored(
    "chunk_size_feed_forward", "ep_size", "max_sequence_length", "n_ctx", "pretraining_tp"
)
# Of a vision encoder: families that build it read them, others take text alone.
_MEDIA = ignored(
    *("feature_extractor", "mm_tokens_per_image", "preprocessor_config", "processor_config"),
    "vision_config",
)
_SWITCHES: Harmless = {
    "add_cross_attention": one_of(False),
    "cross_attention_hidden_size": one_of(None),
    "is_decoder": anything,
    "is_encoder_decoder": one_of(False),
    "pruned_heads": one_of({}),
    "tie_encoder_decoder": one_of(False),
}
_EVERYWHERE: Harmless = {**_ORIGIN, **_GENERATION, **_TRAINING, **_EXECUTION, **_MEDIA, **_SWITCHES}

# What decoders with rotary positions and gated feed-forwards compute with.
DECODER = (
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
)
# Features of other decoders, at the value at which they are off.
DECODER_OFF: Harmless = {
    "attention_bias": one_of(False),
    "layer_types": all_in("full_attention"),
    "mlp_bias": one_of(False),
    "partial_rotary_factor": one_of(1.0),
    "rope_interleaved": one_of(False),
    "use_mrope": one_of(False),
}


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """The keys of one family, beside those that change nothing in any."""

    family: str
    computed: tuple[str, ...]
    harmless: Harmless

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise CheckpointError for a key that might change what the model computes.

        A null counts as absent, as Hugging Face writes it.
        """
        unknown = [key for key, value in config.items() if not self._knows(key, value)]
        if unknown:
            raise CheckpointError(self._refusal(config, unknown))

    def _knows(self, key: str, value: Any) -> bool:
        if value is None or key in self.computed:
            return True
        changes_nothing = self.harmless.get(key) or _EVERYWHERE.get(key)
        return changes_nothing is not None and changes_nothing(value)

    def _refusal(self, config: Mapping[str, Any], unknown: list[str]) -> str:
        kind = config.get("model_type")
        them = "it changes" if len(unknown) == 1 else "they change"
        return (
            f"config.json (model_type {kind!r}) has {listed(config, unknown)}, which the "
            f"{self.family} family does not compute, so the answers could be wrong: serve a model "
            f"of a supported family, or, if you know that {them} nothing, remove "
            f"{'this key' if len(unknown) == 1 else 'these keys'} from config.json"
        )


def listed(config: Mapping[str, Any], keys: Iterable[str]) -> str:
    """`key = value` of the first few keys, and how many more there are."""
    keys = sorted(keys)
    shown = [f"{key[:_SHOWN]} = {_short(config[key])}" for key in keys[:_NAMED]]
    rest = len(keys) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
