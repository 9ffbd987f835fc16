"""The model paths that sax itself has, and the overrides that each takes.

For those that have no model server to ask: an admin server whose model servers have not joined yet,
and `sax k8s render`. A model server takes what its own classes declare; a test holds that both say
the same. Models that somebody registered with a model server of their own are not here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.overrides.saxml_overrides import saxml_class_of
from sax.overrides.saxml_parameters import SAXML_PARAMETERS

# Read by the admin server, of every model, and given to no model server.
OF_PLACEMENT = re.compile(r"constraints|ram\d*")

_PREFIX = "saxml.server."
AUTO = "auto"  # the family that a checkpoint's config.json names


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FAMILIES = _words(
    """
    afmoe apertus arcee axk1 axk2 bailing_hybrid bamba cohere cohere2 cohere2_moe colpali cwm
    deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 dots1 dots3_note ernie4_5 ernie4_5_moe
    exaone4 exaone_moe falcon_h1 flint gemma gemma2 gemma3 gemma3n gemma4 glm glm4 glm4_moe
    glm4_moe_lite glm5_next glm_moe_dsa gpt2 gpt_neox gpt_oss gptj granite granite_speech
    granite_swa granitemoe granitemoe_swa granitemoehybrid helium hunyuan hunyuan_moe hy_v3
    hy_v4 hyperclovax kimi_linear laguna lfm2 lfm2_moe llama llama4 llava mamba2 mellum mimo_v2
    minimax minimax_m2 minimax_m3 ministral3 mistral mistral4 mistral_large4 mixtral nemotron_h
    olmo2 olmo3 olmo_hybrid olmoe paligemma phi phi3 phi4_multimodal phimoe qwen2 qwen2_5_omni
    qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next
    qwen3_omni_moe qwen3_vl qwen3_vl_moe qwen4_exp sarvam_mla sarvam_moe seed_oss smollm3
    solar_open starcoder2 step3p5 transformers voxtral youtu
    """
)
_SAXML_CLASSES = {  # by module
    "lm_cloud": """
        LmCloudSpmd2B LmCloudSpmd2BTest LmCloudSpmd2B4Test LmCloudSpmd2B8Test
        LmCloudSpmd2B16Test LmCloudSpmd2B32Test LmCloudSpmd175B LmCloudSpmd175BTest
        LmCloudSpmd175B32Test LmCloudSpmd175B64Test LmCloudSpmd175B128Test
        LmCloudSpmd175B256Test LLaMA7BFP16 LLaMA7BFP16TPUv4 LLaMA7BFP16TPUv5e LLaMA7B
        LLaMA7BTPUv5e4 LLaMA7BTPUv5e8 LLaMA7BTPUv5e16 LLaMA7BContinuousBatchingTPUv5e4
        LLaMA7BContinuousBatchingTPUv5e8 LLaMA7BH100BS8 LLaMA7BH100 LLaMA13B LLaMA33B
        LLaMA65B LLaMA70BFP16TPUv5e LLaMA70BFP16TPUv5e16 LLaMA70BFP16TPUv5e32
        LLaMA70BFP16TPUv5e64 LLaMA70BInt8TPUv5e8 LLaMA70BInt8TokenizedInputTPUv5e8
        LLaMA70BInt8TokenizedInputTPUv5e8Stream LLaMA70BInt8LinearOnlyx8 LLaMA70BFP16H100x8
        LLaMA70BInt8H100x8 LLaMA70BInt8H100x8BS32 LLaMA70BInt8H100x8Fake LLaMA3_8BFP16x4
        LLaMA3_8BFP16Testx4 LLaMA3_8BFP16x1 LLaMA3_70BFP16x16 LLaMA3_70BFP16x8
        LLaMA3_70BInt8LinearOnlyx8 LLaMA31_405BFP16x64 LLaMA31_405BLinearOnlyInt8x32
    """,
    "gemma": """
        GemmaBase Gemma2BFP16 Gemma2BFP16Exp Gemma2BFP16With8Replicas
        Gemma2BFP16With4Replicas Gemma2BFP16Test Gemma2BInt8 Gemma2BInt8With8Replicas
        Gemma2BInt8Test Gemma7BFP16 Gemma7BFP16Exp Gemma7BFP16With2Replicas Gemma7BFP16Test
        Gemma7BInt8 Gemma7BInt8With2Replicas Gemma7BInt8Test
    """,
    "gptj": """
        GPTJ GPTJ4BF16BS32 GPTJ4TokenizedBF16BS32
    """,
    "c4": """
        C4SpmdGpt3AdamOrgHP
    """,
}
_SAXMLS = frozenset(
    f"pax.lm.params.{module}.{name}"
    for module, names in _SAXML_CLASSES.items()
    for name in names.split()
)
_EMBEDDERS = frozenset(("bert", "clip", "modernbert", "roberta", "siglip"))
_IMAGES = frozenset(("resnet", "pax.vision.params.resnet.ImageNetResNet50"))

_PATHS = {AUTO, "whisper", "vits", "lora", *_FAMILIES, *_SAXMLS, *_EMBEDDERS, *_IMAGES}

_OF_LANGUAGE = _words(
    """
    ACTIVATIONS CHAT_TEMPLATE CLASSIFY_ACTIVATION DRAFT_MODEL DRAFT_QUANTIZE DTYPE
    GRADIENT_WRT_INPUT_TENSOR_NAMES GRADIENT_WRT_MDL_VAR_TENSOR_NAMES ICI_MESH_SHAPE IMAGES
    IMAGE_PIXELS KV_CACHE_BYTES KV_CACHE_DTYPE MATRYOSHKA MAX_ADAPTERS MAX_ADAPTER_RANK MAX_CONTEXT
    MAX_DECODE_STEPS MAX_GUESSES MEDIA_ROWS NORMALIZE NUM_CACHE_SLOTS NUM_SAMPLES NUM_STAGES
    PASS_CONTEXT POOLING QUANTIZE QUERY_FORMAT REASONING_PARSER RERANK_TOKENS RETURN_ROUTED_EXPERTS
    SHARDING_RULES SOUNDS SPECULATION TASKS TEMPERATURE TOOL_PARSER TOP_K TOP_P
    """
)
_OF_SAXMLS = frozenset(("PER_EXAMPLE_MAX_DECODE_STEPS",))
_OF_EMBEDDERS = _words(
    """
    BATCH_SIZE CLASSIFY_ACTIVATION DTYPE ICI_MESH_SHAPE MATRYOSHKA MAX_CONTEXT NORMALIZE POOLING
    SHARDING_RULES TASKS
    """
)
_OF_IMAGES = frozenset(("BATCH_SIZE", "DTYPE", "ICI_MESH_SHAPE", "IMAGE_SIZE", "TOP_K"))
_OF_SOUNDS = frozenset(("BATCH_SIZE", "DTYPE", "ICI_MESH_SHAPE", "MAX_AUDIO_MINUTES"))
_OF_VOICES = frozenset(("DTYPE", "FRAME_BUCKETS", "TOKEN_BUCKETS", "VOICES"))
_OF_ADAPTERS = frozenset(("BASE",))
# Sizes that only some of Saxml's classes have, by how their names begin.
_OF_SOME = {
    "NUM_KV_HEADS": ("lm_cloud.LLaMA", "gemma."),
    "ROTARY_DIM": ("gptj.",),
    "MAX_POSITION_EMBEDDINGS": ("gptj.",),
    "TRAINABLE_PE_MAX_SEQ_LEN": ("c4.",),
}


def overrides_of(path: str) -> frozenset[str] | None:
    """Return the names of the overrides that a model path takes, those without effect included;
    None: the path is none of sax's own."""
    bare = path.removeprefix(_PREFIX)
    if path == AUTO:  # the checkpoint decides which of these it takes
        return _OF_LANGUAGE | _OF_EMBEDDERS | _OF_IMAGES | _OF_SOUNDS | _OF_VOICES
    if (name := saxml_class_of(path)) is not None:
        others = {key for key, of in _OF_SOME.items() if not name.startswith(of)}
        return (_OF_LANGUAGE | _OF_SAXMLS | SAXML_PARAMETERS.keys()) - others
    kinds = (
        (_FAMILIES, _OF_LANGUAGE),
        (_EMBEDDERS, _OF_EMBEDDERS),
        (_IMAGES, _OF_IMAGES),
        ({"whisper"}, _OF_SOUNDS),
        ({"vits"}, _OF_VOICES),
        ({"lora"}, _OF_ADAPTERS),
    )
    return next((names for paths, names in kinds if bare in paths), None)


def check_names(path: str, overrides: Iterable[str]) -> None:
    """Raise InvalidRequest naming an override that a path of sax's own does not take."""
    known = overrides_of(path)
    for key in overrides:
        if known is not None and key not in known and not OF_PLACEMENT.fullmatch(key):
            raise unknown_override(key, known)


def full_path(words: str) -> str:
    """Return the path of sax's own that ends in these words; the words, if none or several do."""
    bare = words.removeprefix(_PREFIX)
    ends = [path for path in _PATHS if path.endswith(f".{bare}")]
    return f"{_PREFIX}{ends[0]}" if len(ends) == 1 and bare not in _PATHS else words


def unknown_override(key: str, known: Collection[str]) -> InvalidRequest:
    """Return the error of an override that a model does not take, with what to give instead."""
    return InvalidRequest(_unknown(key, known), param=f"overrides.{key}")


def unknown_path(path: str) -> str:
    """Say that nobody here can judge a path that is none of sax's own; "" for one that is."""
    bare = path.removeprefix(_PREFIX)
    if bare in _PATHS:
        return ""
    close = difflib.get_close_matches(bare, _PATHS, n=1, cutoff=0.8)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"{path} is none of sax's own model paths{hint}: it and its overrides are checked by the "
        "model server that loads it"
    )


def _unknown(key: str, known: Collection[str]) -> str:
    saxmls = SAXML_PARAMETERS.get(key)
    if saxmls is not None and (reason := saxmls.elsewhere):
        return f"override {key} has no effect here: {reason}"
    if key == "NUM_STAGES" and "ICI_MESH_SHAPE" in known:
        return (
            "override NUM_STAGES: a model of this kind has one stage; leave it out, or give its "
            "devices by ICI_MESH_SHAPE"
        )
    close = difflib.get_close_matches(key.upper(), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown override {quoted(key)}: {hint}this model takes {', '.join(sorted(known))}"
