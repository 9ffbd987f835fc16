"""What llama.cpp's converter writes for the models of `media`: both files, as `converted` tells it.

Needs what `converted` needs. A file holds `config` and `preprocessor`, what was changed in the
case's files because GGUF has no word for it, `shapes`, those of tensors that are others for that,
and `text` and `media`, each with `metadata` and `tensors`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.tools.golden import common, converted
from tests.tools.golden.converted import llama_cpp, parts_of
from tests.tools.golden.media.case import tensor_of

MEDIA = common.GOLDEN / "media"


class Changes(NamedTuple):
    """What a case of `media` says otherwise here."""

    config: dict[str, Any] = {}
    preprocessor: dict[str, Any] = {}
    told: dict[str, Any] = {}  # config.json of the converter alone
    shapes: dict[str, list[int] | None] = {}  # None: there is no such tensor
    any_size: bool = False  # the converter asserts those of published models
    # Beginnings of tensors' names -> those of the converter's folder alone
    renamed: dict[str, str] = {}
    named: dict[str, str] = {}  # what the converter's tables lack and earlier ones had


_FFW = "thinker.model.layers.1.mlp"
_PROJECTIONS = {"gate_proj": [20, 48], "up_proj": [20, 48], "down_proj": [48, 20]}
# Of Qwen3-Omni: every layer has experts.
_EXPERTS: dict[str, list[int] | None] = {
    **{f"{_FFW}.{part}.weight": None for part in _PROJECTIONS},
    f"{_FFW}.gate.weight": [6, 48],
    **{
        f"{_FFW}.experts.{expert}.{part}.weight": shape
        for expert in range(6)
        for part, shape in _PROJECTIONS.items()
    },
}
_DOTS3 = "dots3_note_published"


def _without(name: str, pattern: str) -> dict[str, list[int] | None]:
    """Return a case's tensors whose names match, as none."""
    shapes = common.read_json(MEDIA / name / "tensors.json")
    return dict.fromkeys(filter(re.compile(pattern).fullmatch, shapes), None)


def _with_wide_heads(name: str) -> dict[str, list[int] | None]:
    """Return the tower's tensors of MiniMax-M3 with heads of 80 numbers, in place of 20: the
    converter takes no others."""
    shapes = common.read_json(MEDIA / name / "tensors.json")
    tower = re.compile(r"vision_tower\..*|multi_modal_projector\.linear_1\.weight")
    return {
        key: [160 if each == 40 else each for each in shapes[key]]
        for key in filter(tower.fullmatch, shapes)
    }


_PIXELS = {"min_pixels": 56 * 56, "max_pixels": 16384 * 28 * 28}


def _experts_apart(name: str) -> dict[str, list[int] | None]:
    """Return a case whose every layer has experts, each with tensors of its own."""
    text = common.read_json(MEDIA / name / "config.json")["text_config"]
    size, inner, count = (
        text[key] for key in ("hidden_size", "moe_intermediate_size", "num_experts")
    )
    ffw = {"gate_proj": [inner, size], "up_proj": [inner, size], "down_proj": [size, inner]}
    given, made = common.read_json(MEDIA / name / "tensors.json"), dict[str, list[int] | None]()
    stored = re.compile(
        r"(.*\.layers\.\d+\.mlp\.)(experts\.)?(gate_up|gate|up|down)_proj(\.weight)?"
    )
    for found in filter(None, map(stored.fullmatch, given)):
        made |= {found[0]: None, f"{found[1]}gate.weight": [count, size]}
        made |= {
            f"{found[1]}experts.{at}.{part}.weight": shape
            for at in range(count)
            for part, shape in ffw.items()
        }
    return made


def _published_dots3() -> Changes:
    """Return Dots 3 with the text of the case `dots3_note_published` of `converted`, beside both
    encoders: the converter knows published keys, and layers that this case has not.
    """
    text = converted.config_of(_DOTS3, converted.CASES[_DOTS3])
    named = {
        f"{kind}_token_id": text.pop(f"{kind}_token_id") for kind in ("image", "video", "audio")
    }
    for key in ("architectures", "audio_config", "vision_config"):
        del text[key]
    text["model_type"] = "dots3_note_text"
    media = common.read_json(MEDIA / "dots3_note" / "tensors.json")
    made = {name: list(x.shape) for name, x in converted.tensors_of(_DOTS3).items()}
    shapes = {
        name: made.get(name) for name in sorted(media.keys() | made) if "_encoder." not in name
    }
    heard = {f"audio_config.use_{key}": True for key in ("conv2d_stem", "rms_norm", "rope")}
    return Changes(
        {**named, "text_config": text, "vision_config.router_scale": 1.0},
        {"max_pixels": 3840, "min_pixels": 128},
        told={
            **text,  # published files have no text_config
            **heard,
            "model_type": None,  # else transformers puts its own keys for these
            "text_config.model_type": None,
            "audio_config.chunk_seconds": 60,
            "audio_config.rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4},
            "audio_config.whisper_config.activation_function": "swiglu",
            "vision_config.adapter_type": "patch_merger",
            "vision_config.pre_pixel_shuffle": True,
            "vision_config.rms_norm_eps": 1e-5,
            "vision_config.use_qk_norm": True,
        },
        shapes=shapes,
    )


CASES: dict[str, Changes] = {
    "dots3_note": _published_dots3(),
    "exaone4_5": Changes(),
    "gemma3": Changes(preprocessor={"image_seq_length": 4}),
    "gemma4": Changes(
        {
            "audio_config.attention_chunk_size": 12,
            "audio_config.attention_context_left": 13,
            "audio_config.attention_logit_cap": 50.0,
            "text_config.sliding_window": 1024,
            "text_config.use_bidirectional_attention": "vision",
            "vision_config.pooling_kernel_size": 3,
            "vision_config.position_embedding_size": 210,
        },
        told={"audio_config.input_feat_size": 20},
        shapes={"model.vision_tower.patch_embedder.position_embedding_table": [2, 210, 36]},
    ),
    "glm5_next": Changes(
        # Its published keys, which transformers replaces by its own where it knows the model
        told={
            "model_type": None,
            "text_config.first_k_dense_replace": 1,
            "text_config.linear_attn_config": {
                "gate_lower_bound": -5.0,
                "head_dim": 12,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "text_config.mla_use_nope": True,
        },
    ),
    "gemma3n": Changes(
        {
            "audio_config.conf_attention_chunk_size": 12,
            "audio_config.conf_attention_context_left": 13,
            "audio_config.conf_attention_logit_cap": 50.0,
            "audio_soft_tokens_per_image": 188,
            # Of 8 channels either way; shapes say the whole number
            "vision_config.model_args.block_args.0.1.exp_ratio": 2.0,
        },
        named={
            f"model.audio_tower.subsample_conv_projection.conv_{each}.norm": f"a.conv1d.{each}.norm"
            for each in range(2)
        },
    ),
    # Where text_config names the class of the text, as published, it is converted.
    "granite_speech": Changes(told={"text_config.architectures": ["GraniteForCausalLM"]}),
    "granite_speech_plus": Changes(told={"text_config.architectures": ["GraniteForCausalLM"]}),
    "kimi_k25": Changes(
        preprocessor={"in_patch_limit": 512},
        # The names of the code that is published with the model
        told={
            "architectures": ["KimiK25ForConditionalGeneration"],
            "vision_config.init_pos_emb_height": 6,
            "vision_config.init_pos_emb_time": 4,
            "vision_config.init_pos_emb_width": 6,
        },
    ),
    "llama4": Changes({"vision_config.rope_theta": 10000.0}),
    "llava_pixtral": Changes(),
    "minimax_m3": Changes(
        {"vision_config.hidden_size": 160},
        told={
            "model_type": None,
            "text_config.n_shared_experts": 1,
            "text_config.swiglu_alpha": 1.702,
            "text_config.swiglu_limit": 7.0,
        },
        shapes=_with_wide_heads("minimax_m3"),
    ),
    "mistral3": Changes(),
    "qwen2_audio": Changes(),
    "qwen2_vl": Changes(),
    "qwen2_5_vl": Changes({"vision_config.window_size": 32}),
    "qwen2_5_omni": Changes(
        {
            "thinker_config.audio_config.n_window": 100,
            "thinker_config.vision_config.window_size": 32,
        },
        {"chunk_length": 300, **_PIXELS},
    ),
    "qwen3_omni_moe": Changes(
        {
            "thinker_config.audio_config.n_window_infer": 800,
            "thinker_config.text_config.mlp_only_layers": [],
        },
        _PIXELS,
        shapes=_EXPERTS,
        # It has no names for `thinker.visual`, as the published folder has them.
        renamed={"thinker.visual.": "visual."},
    ),
    "qwen3_vl": Changes(),
    "qwen3_5": Changes(),
    "qwen4_exp": Changes(
        {"text_config.ple_layer_ids": []},
        shapes=_without("qwen4_exp", r".*\.ple\..*"),
        # Without its type the published keys, which transformers replaces by its own
        told={
            "model_type": None,
            "text_config.layer_types": [*["linear_attention"] * 2, "full_attention"],
        },
    ),
    "qwen3_5_moe": Changes(shapes=_experts_apart("qwen3_5_moe")),
    "qwen3_vl_moe": Changes(
        {"text_config.mlp_only_layers": []}, shapes=_experts_apart("qwen3_vl_moe")
    ),
    "step3p7": Changes(
        {
            **{f"text_config.{k}": x for k, x in converted.CASES["step3p7"]["text_config"].items()},
            "vision_config.image_size": 56,
            "vision_config.patch_size": 7,
        },
        {"max_image_size": 3024, "patch_size": 504, "size": {"height": 56, "width": 56}},
        told={"model_type": None, "understand_projector_stride": 2},
        shapes={"vision_model.conv1.weight": [32, 3, 7, 7]},
        any_size=True,
    ),
    "voxtral": Changes(),
}
IMAGE_BREAK, _LAYERS = 263, 32


def make(name: str, into: Path) -> None:
    """Write into/NAME.json."""
    changes = CASES[name]
    config = common.changed(common.read_json(MEDIA / name / "config.json"), changes.config)
    preprocessor = preprocessor_of(name) | changes.preprocessor
    parts: dict[str, Any] = {
        "how": common.how(
            "converted_media", name, "conversion to float32 by llama.cpp's converter"
        ),
        "config": changes.config,
        "preprocessor": changes.preprocessor,
        "shapes": changes.shapes,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _write(folder, name, common.changed(config, changes.told), preprocessor)
        for key in ("text", "media"):
            parts[key] = parts_of(_converted(folder, key, changes))
    into.mkdir(parents=True, exist_ok=True)
    (into / f"{name}.json").write_text(common.lines(parts))


def _write(folder: Path, name: str, config: dict[str, Any], preprocessor: dict[str, Any]) -> None:
    text = config.get("thinker_config", config)
    words = (text | text.get("text_config", {}))["vocab_size"]
    vocabulary = {f"x{each}": each for each in range(words) if each != IMAGE_BREAK}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [{"id": IMAGE_BREAK, "content": "[IMG_BREAK]", **flags}]
    files = {
        "config.json": config,
        "preprocessor_config.json": preprocessor,
        "tokenizer.json": {
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            "added_tokens": added,
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for file, value in files.items():
        (folder / file).write_text(json.dumps(value))
    save_file(_stored(name, CASES[name]), folder / "model.safetensors", {"format": "pt"})


def _stored(name: str, changes: Changes) -> dict[str, np.ndarray]:
    """Return the weights by the names that the converter is given."""
    made = tensors_of(name, changes.shapes)
    for start, own in changes.renamed.items():
        made = {re.sub(f"^{re.escape(start)}", own, key): numbers for key, numbers in made.items()}
    return made


def _converted(folder: Path, key: str, changes: Changes) -> Any:
    conversion, gguf, torch = llama_cpp()
    with torch.inference_mode():
        kind = conversion.ModelType.TEXT if key == "text" else conversion.ModelType.MMPROJ
        settings = conversion.ModelBase.load_hparams(folder, False)
        named = conversion.get_model_architecture(settings, kind)
        converter = conversion.get_model_class(named, mmproj=key == "media")
        if changes.any_size:
            _run_without_asserts(converter.__module__)
            converter = conversion.get_model_class(named, mmproj=key == "media")
        converter.set_vocab = lambda self: None
        converter.no_mtp = True  # these have no layers that draft
        out = folder / f"{key}.gguf"
        made = converter(folder, gguf.LlamaFileType.ALL_F32, out, eager=True)
        if hasattr(made, "impl"):  # of Mistral 3, which is one of several
            made.impl.set_vocab = lambda: None
        if key == "media":  # names are listed by layer, of which an encoder usually has more
            made.tensor_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, _LAYERS)
            kind = gguf.MODEL_TENSOR.A_ENC_CONV1D_NORM
            made.tensor_map.mapping |= {each: (kind, own) for each, own in changes.named.items()}
        made.write()
    return gguf.GGUFReader(out)


def _run_without_asserts(name: str) -> None:
    """Define a module's classes again, which registers them."""
    module = sys.modules[name]
    path = Path(module.__file__ or "")
    exec(compile(path.read_text(), path, "exec", optimize=1), module.__dict__)


def preprocessor_of(name: str) -> dict[str, Any]:
    """Return what a case of `media` says of pictures; nothing if it has none."""
    if (path := MEDIA / name / "preprocessor_config.json").exists():
        return common.read_json(path)
    return common.read_json(MEDIA / name / "processor_config.json").get("image_processor", {})


def tensors_of(name: str, others: Mapping[str, list[int] | None]) -> dict[str, np.ndarray]:
    """Return the weights of a case of `media` by Hugging Face name; others: shapes."""
    shapes = common.read_json(MEDIA / name / "tensors.json") | others
    return {key: tensor_of(key, tuple(shape)) for key, shape in shapes.items() if shape is not None}
