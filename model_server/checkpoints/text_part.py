"""Presents the text part of a vision-language checkpoint as the checkpoint of a text model.

Such a config.json nests the text model's as `text_config`, and its tensors are named
`language_model.model.` or, in some later files, `model.language_model.`. The tensors of the
vision encoder are `media_part`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.checkpoints.checkpoint_view import view_of, without
from model_server.checkpoints.huggingface.rope_settings import check_outside
from model_server.checkpoints.media_part import (
    AUDIO,
    VISION,
    is_media,
    media_part_of,
    with_adapters,
    with_processors,
    without_media,
)
from sax.errors import CheckpointError

# model_type -> the text part's model_type, if its own config does not say it
_TEXT_TYPES = {
    "colpali": "gemma",
    "dots3_note": "dots3_note_text",
    "exaone4_5": "exaone4",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm5_next": "glm5_next_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mistral_large4": "mistral_large4_text",
    "paligemma": "gemma",
    "qwen2_audio": "qwen2",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen4_exp": "qwen4_exp_text",
    "step3p7": "step3p5",
    "voxtral": "llama",
}
# Those of which some files have the keys of both parts beside each other.
_FLAT = ("dots3_note", "glm5_next", "qwen2_5_vl", "qwen2_vl")
# Prefix of the text part's tensors -> prefix in a text model. `language_model.` alone is not
# enough: the head is below it, too.
_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
    "thinker.lm_head.": "lm_head.",
    "thinker.model.": "model.",
}
# model_type -> other spellings of parts of names -> the one that the family reads; without a dot in
# front: of the beginning. transformers takes all of Hy4's, wherever `hc_pre` stands in a name.
# Mistral Large 4's are Mistral's own; transformers 5.24 writes Kimi K2.5's.
_SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "deepseek_v4": {
        "layers.": "model.layers.",
        "embed.": "model.embed_tokens.",
        "norm.": "model.norm.",
        "head.": "lm_head.",
        "hc_head_": "model.hc_head.hc_",
        ".attn.": ".self_attn.",
        ".ffn.": ".mlp.",
        ".attn_norm.": ".input_layernorm.",
        ".ffn_norm.": ".post_attention_layernorm.",
        ".hc_attn_": ".attn_hc_",
        ".hc_ffn_": ".ffn_hc_",
        ".attn_sink": ".sinks",
        ".indexer.compressor.": ".compressor.indexer.",
        ".self_attn.indexer.weights_proj.": ".self_attn.compressor.indexer.scorer.weights_proj.",
        ".self_attn.indexer.wq_b.": ".self_attn.compressor.indexer.q_b_proj.",
        ".self_attn.norm.": ".self_attn.kv_norm.",
        ".compressor.norm.": ".compressor.kv_norm.",
        ".indexer.norm.": ".indexer.kv_norm.",
        ".ape": ".position_bias",
        ".q_norm.": ".q_a_norm.",
        ".wq_a.": ".q_a_proj.",
        ".wq_b.": ".q_b_proj.",
        ".wkv.": ".kv_proj.",
        ".wgate.": ".gate_proj.",
        ".wo_a.": ".o_a_proj.",
        ".wo_b.": ".o_b_proj.",
        ".gate.bias": ".gate.e_score_correction_bias",
        ".shared_experts.w1.": ".shared_experts.gate_proj.",
        ".shared_experts.w2.": ".shared_experts.down_proj.",
        ".shared_experts.w3.": ".shared_experts.up_proj.",
    },
    "hy_v4": {
        ".hc_pre.hc_": ".hc_",
        ".learnable_sink_param": ".sinks",
        ".linear_gate": ".gate_proj",
        ".hc_head_": ".hc_",
        ".attn_hc.": ".hc_attn_layer.hc_",
        ".ffn_hc.": ".hc_mlp_layer.hc_",
    },
    "kimi_k25": {"language_model.model.blocks.": "language_model.model.layers."},
    "mistral_large4": {
        "layers.": "model.layers.",
        "lerope.": "model.rotary_emb.",
        "norm.": "model.norm.",
        "output.": "lm_head.",
        "tok_embeddings.": "model.embed_tokens.",
        ".attention.": ".self_attn.",
        ".attention_norm.": ".input_layernorm.",
        ".ffn_norm.": ".post_attention_layernorm.",
        ".kv_a_norm.": ".kv_a_layernorm.",
        ".wq.": ".q_proj.",
        ".wo.": ".o_proj.",
        ".wkv_a_with_mqa.": ".kv_a_proj_with_mqa.",
        ".wkv_b.": ".kv_b_proj.",
        ".ssmax_scaling.s": ".softmax_scaling.scale",
        ".ssmax_scaling.b": ".softmax_scaling.bias",
        ".feed_forward.": ".mlp.",
        ".gate.": ".mlp.gate.",
        ".experts.": ".mlp.experts.",
        ".shared_experts.": ".mlp.shared_experts.",
        ".w1.": ".gate_proj.",
        ".w2.": ".down_proj.",
        ".w3.": ".up_proj.",
    },
}
# Families that put a text model of another family beside their tower.
_PHI4 = "phi4_multimodal"  # its text model's keys lie beside those of its encoders
_GRANITE_SPEECH = ("granite_speech", "granite_speech_plus")
_AROUND_OTHERS = (*_GRANITE_SPEECH, "colpali", "llava", "paligemma", "qwen2_audio", "voxtral")
# Others leave an audio encoder out.
_WITH_AUDIO = (
    *(*_GRANITE_SPEECH, "dots3_note", "gemma3n", "gemma4", "qwen2_audio"),
    *("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "voxtral"),
)
# Those with a model that speaks beside the one that answers: the parts that are not read.
_THINKER = "thinker_config"
_SPEAKING = ("talker_config", "token2wav_config", "code2wav_config")
_SPEAKERS = tuple(part.replace("_config", ".") for part in _SPEAKING)
_ENCODER = "encoder_config"
_OUTER_ONLY = ("text_config", "model_type", "architectures")
# What is not the text model's, so that the outer config.json says it where both do.
_OUTER_FIRST = (
    "bos_token_id",
    "compression_config",
    "dtype",
    "eos_token_id",
    "pad_token_id",
    "quantization_config",
    "torch_dtype",
)
# What of that a text model computes with, so that it is its own.
_OWN_TOKENS = {"gemma4": ("pad_token_id",), "qwen4_exp": ("eos_token_id",)}
# Those around another model, whose hidden states they project: the model_type of the whole; None:
# that of the other one.
_LATE = {"colpali": "colpali", "colqwen2": None}
# Towers of texts and of images side by side, of which neither reads the other's vectors.
_IN_ONE_SPACE = ("clip", "siglip", "siglip2")
_LATE_KEPT = ("linear.", "lm_head.", "language_model.model.", "language_model.lm_head.")
_TIED, _PAIR = "tie_word_embeddings", {"lm_head.weight", "model.embed_tokens.weight"}
# Whose outer config.json alone decides it in transformers, where one of the pair is stored.
_TIED_UNLESS_SAID = ("gemma3", "gemma3n", "gemma4", *_GRANITE_SPEECH, "mistral3")


def text_part_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint, or its text part if it has others. Raises CheckpointError.

    The config of a text part says how images are seen only if there are tensors to see them with.
    """
    checkpoint = _renamed(_unwrapped(checkpoint))
    if checkpoint.config.get("model_type") in _IN_ONE_SPACE:
        names = {name: name for name in checkpoint.names()}
        return view_of(checkpoint, names, with_processors(checkpoint.config, checkpoint.folder))
    config = text_config(checkpoint.config)
    if config is checkpoint.config:
        # Encoders of GGUF files come with the config of a text model.
        with_media = checkpoint.format == "gguf" and (VISION in config or AUDIO in config)
        media = {name for name in checkpoint.names() if is_media(name, None)}
        return without(checkpoint, media if with_media else ())
    kind = checkpoint.config.get("model_type")
    own = (name for name in checkpoint.names() if not name.startswith(_SPEAKERS))
    names = {_text_name(name): name for name in own if not is_media(name, kind)}
    if kind in _TIED_UNLESS_SAID and len(_PAIR & names.keys()) == 1:
        config = config | {_TIED: checkpoint.config.get(_TIED) is not False}
    sees = media_part_of(checkpoint) is not None
    config = with_processors(config, checkpoint.folder) if sees else without_media(config)
    config = with_adapters(config, checkpoint.folder)
    return view_of(checkpoint, names, config)


def _unwrapped(checkpoint: Checkpoint) -> Checkpoint:
    """Return a late-interaction model that sees as the model that it is made of; its projection is
    `linear`, as of those that read texts. Raises CheckpointError.
    """
    config = checkpoint.config
    kind = config.get("model_type")
    if kind not in _LATE:
        return checkpoint
    inner = config.get("vlm_config")
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json has vlm_config = {inner!r}; it must be an object")
    names = {_late_name(name): name for name in checkpoint.names()}
    own = {"architectures": config.get("architectures")}
    own |= {"model_type": _LATE[kind] or inner.get("model_type")}
    return view_of(checkpoint, names, {**inner, **own})


def _late_name(name: str) -> str:
    own = name.replace("embedding_proj_layer.", "linear.", 1).removeprefix("vlm.")
    own = own.removeprefix("model.")
    return own if own.startswith(_LATE_KEPT) else f"model.{own}"


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Merge text_config with the outer config.json, which alone has e.g. the end token ids.

    Of a setting that both have the inner one counts, as in transformers.

    Returns a text model's own config as it is. Raises CheckpointError.
    """
    config = _thinker(config)
    kind = config.get("model_type")
    if kind in _GRANITE_SPEECH and _ENCODER in config:
        config = {AUDIO if key == _ENCODER else key: value for key, value in config.items()}
    if kind == _PHI4:
        return dict(config)
    if kind in _FLAT and "text_config" not in config:
        return {**config, "model_type": _TEXT_TYPES[kind]}
    if "text_config" not in config or kind not in _TEXT_TYPES:
        return config
    inner = config["text_config"]
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json has text_config = {inner!r}; it must be an object")
    check_outside(config, inner)
    unread = _OUTER_ONLY if kind in _WITH_AUDIO else (*_OUTER_ONLY, AUDIO)
    outer = {k: v for k, v in config.items() if k not in unread and v is not None}
    outer_first = [key for key in _OUTER_FIRST if key not in _OWN_TOKENS.get(kind, ())]
    own = {k: v for k, v in inner.items() if v is not None and k not in outer_first}
    if outer.get(_TIED) is True:  # either says it, as in transformers
        own[_TIED] = True
    inner_kind = inner.get("model_type") or _TEXT_TYPES[kind]
    if kind in _AROUND_OTHERS:
        return {**inner, **outer, **own, "model_type": kind, "text_model_type": inner_kind}
    return {**inner, **outer, **own, "model_type": inner_kind}


def _thinker(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the part that answers, of a model with one that speaks."""
    if _THINKER not in config:
        return config
    inner = config[_THINKER]
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"config.json has {_THINKER} = {inner!r}; it must be an object")
    outer = {key: value for key, value in config.items() if key not in (*_SPEAKING, _THINKER)}
    return {**outer, **inner}


def _renamed(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with one name for each part, where files have several."""
    kind = str(checkpoint.config.get("model_type"))
    spellings = _SPELLINGS.get(kind)
    if spellings is None:
        return checkpoint

    def own(name: str) -> str:
        for other, kept in spellings.items():
            if other.startswith("."):
                name = name.replace(other, kept)
            elif name.startswith(other):
                name = kept + name.removeprefix(other)
        return name

    names = {own(name): name for name in checkpoint.names()}
    return view_of(checkpoint, names, checkpoint.config)


def _text_name(name: str) -> str:
    for prefix, own in _PREFIXES.items():
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name
