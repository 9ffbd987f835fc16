"""Declares every attribute of Saxml's language model classes, and what it does here.

Source: saxml's `ServingTemplate`, its classes in `saxml.server.pax.lm.params`, and those of paxml
that they are made from. An override of a class with another name is refused, too: Saxml logs that
it knows none such and goes on. Attributes of its classes for images and of its PyTorch classes are
not here, as none of them is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sax.fields.sampling import MOST_LOGPROBS, SAMPLING
from sax.overrides.saxml_parameter import SaxmlParameter, Verdict
from sax.overrides.value_rule import (
    ANYTHING,
    FLAG,
    MESH,
    OBJECT,
    TEXT,
    ValueRule,
    list_of,
    number,
    share,
    whole,
)

_ONE, _NONE = whole(1), whole(0)


def _honoured(name: str, rule: ValueRule, why: str, instead: str = "") -> SaxmlParameter:
    return SaxmlParameter(name, Verdict.HONOURED, rule, why, instead=instead)


def _idle(
    name: str, rule: ValueRule, why: str, usual: tuple[object, ...] = (), instead: str = ""
) -> SaxmlParameter:
    return SaxmlParameter(name, Verdict.IDLE, rule, why, usual, instead)


def _refused(
    name: str, rule: ValueRule, why: str, usual: tuple[object, ...] = ()
) -> SaxmlParameter:
    return SaxmlParameter(name, Verdict.REFUSED, rule, why, usual)


def _bounds(name: str, least: float | None = None) -> tuple[float, float]:
    row = SAMPLING[name]
    low = row.least if least is None else least
    assert low is not None
    assert row.most is not None
    return low, row.most


_SIZES = (
    *(
        _honoured(name, _ONE, "a size of the model; a checkpoint must agree")
        for name in (
            *("NUM_LAYERS", "MODEL_DIMS", "HIDDEN_DIMS", "NUM_HEADS", "DIMS_PER_HEAD"),
            *("VOCAB_SIZE", "ROTARY_DIM", "MAX_POSITION_EMBEDDINGS", "TRAINABLE_PE_MAX_SEQ_LEN"),
        )
    ),
    _honoured("NUM_KV_HEADS", _ONE.or_null(), "heads of keys and values; null: as many as heads"),
    _honoured(
        "ICI_MESH_SHAPE",
        MESH.or_null(),
        "devices on the axes replica, data and model; null: every device, on model",
    ),
)
_BATCHES = (
    _honoured(
        "BATCH_SIZE",
        _ONE.or_list().or_null(),
        "requests at once, each with all of its samples; of a list the largest, and its sizes are "
        "compiled. Beside NUM_CACHE_SLOTS it has no effect: prompts share the tokens of each step",
        "use NUM_CACHE_SLOTS",
    ),
    _honoured("NUM_CACHE_SLOTS", _NONE.or_null(), "sequences at once; 0: as BATCH_SIZE says"),
    _honoured(
        "INPUT_SEQ_LEN", _ONE, "with MAX_DECODE_STEPS the context, in tokens", "use MAX_CONTEXT"
    ),
    _honoured(
        "MAX_DECODE_STEPS", _ONE.or_list(), "tokens of an answer, at most; of a list the largest"
    ),
    _honoured(
        "MAX_SEQ_LEN",
        _ONE.or_null(),
        "the context, in tokens, instead of INPUT_SEQ_LEN and MAX_DECODE_STEPS",
        "use MAX_CONTEXT",
    ),
    _idle(
        "BUCKET_KEYS",
        list_of(_ONE).or_null(),
        "prompts of any length run in chunks, so none is padded to a bucket",
        (None,),
    ),
    _idle(
        "SUFFIX_SEQ_LEN",
        _NONE,
        "prefix and suffix share the context",
        (0,),
    ),
    *(
        _idle(
            name,
            number(0).or_null(),
            "requests join the running batch at every step, without waiting for others",
            (None,),
        )
        for name in ("BATCH_WAIT_SECS", "BATCHING_WAIT_SECS")
    ),
    _idle(
        "MAX_LIVE_BATCHES",
        _ONE,
        "the server's --queue flag limits how many requests may wait",
    ),
    _idle(
        "PERCORE_BATCH_SIZE", number(0), "it is of training; BATCH_SIZE and NUM_CACHE_SLOTS serve"
    ),
)
_BY_REQUEST = "a request asks for a beam search with the extra input beam_size"
_TOP_K_ALL = "log-probabilities are those of the whole vocabulary"
_SAMPLES = (
    _honoured("NUM_SAMPLES", _ONE, "answers to a Generate call"),
    _honoured("TEMPERATURE", number(0), "the default of a call"),
    _honoured(
        "TOP_K", _NONE, "the default of a call, and the most that EXTRA_INPUTS can set; 0: off"
    ),
    _honoured("TOP_P", share(), "the default of a call; 1: off"),
    _honoured(
        "EXTRA_INPUTS",
        OBJECT.or_null(),
        "defaults of calls, which may send any extra input, declared or not",
        "use TEMPERATURE, TOP_K, TOP_P and MAX_DECODE_STEPS",
    ),
    _honoured("SORT_SAMPLES", FLAG, "best first, or as they were drawn", "samples come best first"),
    _honoured(
        "USE_BEAM_SEARCH", FLAG, "search for the likeliest answers instead of sampling", _BY_REQUEST
    ),
    _honoured("BEAM_SIZE", whole(*_bounds("beam_size", 1)), "hypotheses of a search", _BY_REQUEST),
    _honoured(
        "TOKENS_PER_BEAM",
        whole(1, MOST_LOGPROBS).or_null(),
        "tokens that each hypothesis offers; null: BEAM_SIZE",
        "a request asks for it with the extra input tokens_per_beam",
    ),
    _honoured(
        "LENGTH_NORM_ALPHA",
        number(*_bounds("length_penalty")),
        "of a search: 0 compares whole log-probabilities",
        _BY_REQUEST,
    ),
    _honoured("BEAM_SEARCH_EARLY_EXIT", FLAG, "of a search: end once all hypotheses did"),
    _honoured("MIN_DECODE_STEPS", _NONE, "of a search: tokens before an answer may end"),
    _idle("USE_MATMUL_BEAM_SHUFFLE", FLAG, "hypotheses share their pages; nothing is shuffled"),
    _idle("TOP_K_RECALL_TARGET", number(0, 1), "top-k is exact", (1, 1.0)),
    _refused("USE_TOP_K_FOR_LOGPROBS", FLAG, f"{_TOP_K_ALL}; leave it out", (False,)),
    _refused(
        "GLOBAL_NORMALIZE",
        FLAG,
        "TOP_P counts probabilities among the TOP_K tokens; leave it out",
        (False,),
    ),
    _refused(
        "NEXT_TOKEN_SAMPLER_TPL", ANYTHING, "samplers are not code of the publisher; leave it out"
    ),
    _idle("EXTRA_INPUTS_DTYPES", OBJECT, "each extra input has a kind of its own", ({},)),
    _refused("SCORE_EXTRA_INPUTS", OBJECT, "Score takes no extra inputs; leave it out", ({},)),
)
_OWN_TOKENIZER = "the tokenizer comes from the checkpoint"
_TOO_LONG = "prompts are never truncated; one that is too long is rejected"
_STARTS = (
    "the tokenizer of the checkpoint says how prompts begin; leave it out, or change add_bos_token "
    "in its tokenizer_config.json"
)
_TOKENS = (
    _honoured("EOS_ID", _NONE.or_list().or_null(), "end token, instead of the tokenizer's"),
    _honoured("STOP_TOKEN_IDS", _NONE.or_list().or_null(), "end tokens, instead of EOS_ID"),
    _honoured("TOKENIZED_INPUT", FLAG, "queries are token ids", "every model takes token ids"),
    _honoured("TOKENIZED_OUTPUT", FLAG, "answers are token ids", "every model gives token ids"),
    *(
        _idle(name, TEXT.or_null(), _OWN_TOKENIZER, (None,))
        for name in ("SPM_MODEL", "VOCABULARY_CLASS", "VOCABULARY_PATH")
    ),
    _idle("SOS_ID", _NONE, _OWN_TOKENIZER),
    _idle("REVERSE_EXTRA_IDS", FLAG, _OWN_TOKENIZER),
    _refused("NUM_EXTRA_IDS", _NONE, f"{_OWN_TOKENIZER}; leave it out", (0,)),
    _refused("PREPEND_SOS", FLAG, _STARTS, (True,)),
    _refused("EOS_PADDING_AND_NO_SOS", FLAG, _STARTS, (False,)),
    _idle("TOKENIZED", FLAG, "it is of training; TOKENIZED_INPUT serves"),
    _idle("SLICE_LEFT", FLAG, _TOO_LONG),
    _idle("FAIL_ON_INPUT_TRUNCATION", FLAG, _TOO_LONG, (True,)),
)
_EVERY_METHOD = "every model generates, streams and scores"
_REPLIES = (
    _honoured("INCLUDE_PREFIX_IN_RESULT", FLAG, "answers begin with the query"),
    _honoured("SCORING_INCLUDE_EOS_SCORE", FLAG, "scores count the end token, too"),
    _honoured("SCORING_USE_GEOMEAN_PROB_SCORE", FLAG, "a score is a mean probability of a token"),
    _honoured(
        "GENERATION_USE_GEOMEAN_PROB_SCORE",
        FLAG,
        "a sample's score is a mean probability of a token",
    ),
    _honoured("SCORE_ONLY", FLAG, "true: no Generate and no GenerateStream", _EVERY_METHOD),
    _honoured("GENERATE_ONLY", FLAG.or_null(), "true: no Score", _EVERY_METHOD),
    _honoured("ENABLE_GENERATE", FLAG, "false: no Generate, only streams", _EVERY_METHOD),
    _idle("ENABLE_GENERATE_STREAM", FLAG, "every model that generates streams, too", (True,)),
    _idle("STREAM_INTERVAL_STEPS", _ONE, "tokens are streamed as they come", (1,)),
    _idle(
        "FETCH_PREFIX_LENGTHS_FROM_INPUTS", FLAG, "prompts are not padded: their lengths are known"
    ),
    _refused(
        "INCLUDE_EOS_SCORE", FLAG, "gradients are of the suffix without an end token", (False,)
    ),
    *(
        _honoured(name, list_of(TEXT).or_null(), "tensors that Gradient differentiates by")
        for name in ("GRADIENT_WRT_INPUT_TENSOR_NAMES", "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES")
    ),
    *(
        _refused(
            name,
            TEXT.or_null(),
            'use TASKS=["generate", "embed"], and POOLING for which vector it is',
            (None,),
        )
        for name in (
            "TEXT_TO_EMBEDDING_OUTPUT_EMBEDDING_NAME",
            "TEXT_TO_EMBEDDING_MODEL_METHOD_NAME",
        )
    ),
    *(
        _idle(name, _ONE, "embeddings share passes that are compiled for several sizes", (1,))
        for name in ("TEXT_TO_EMBEDDING_SERVING_BATCH_SIZE", "TEXT_TO_EMBEDDING_MAX_LIVE_BATCHES")
    ),
)
_KERNELS = "the kernels divide their work by themselves"
_ONE_MESH = "one mesh, ICI_MESH_SHAPE, serves prompts and answers"
_LAYOUT = "it is the layout of a Pax checkpoint, which tells by itself"
_DTYPE = 'use DTYPE="bfloat16" or "float32"'
_MEMORY = (
    _honoured("QUANTIZE_KV", FLAG, 'as KV_CACHE_DTYPE="int8"', "use KV_CACHE_DTYPE"),
    _idle("DECODE_MESH_TRANSPOSE", OBJECT.or_null(), _ONE_MESH, (None,)),
    _idle(
        "DCN_MESH_SHAPE",
        list_of(_ONE).or_null(),
        "there is only one mesh, ICI_MESH_SHAPE",
        (None, [1, 1, 1]),
    ),
    *(
        _idle(name, FLAG, "SHARDING_RULES says what is divided over the mesh")
        for name in ("USE_BATCH_SHARDING", "TRAINING_OPTIMIZED_SHARDING")
    ),
    _idle("EMB_LOOKUP_STYLE", TEXT, "rows of the embedding are read by index", ("index",)),
    _idle("EMBEDDING_LOOKUP_STYLE", TEXT, "rows of the embedding are read by index", ("index",)),
    _idle("FPROP_FOR_PREFIX", FLAG, "a prompt is always computed at once, in chunks", (True,)),
    _idle("SUPPORT_LAZY_PREFIX_BROADCAST", FLAG, "samples share their prompt's pages", (True,)),
    _idle("GPU_FLASH_DECODING", FLAG, _KERNELS, (False,)),
    *(
        _idle(name, _ONE, _KERNELS)
        for name in (
            *("ATTEN_NUM_SEQ_SPLITS", "CHUNKED_ONE_STEP_ATTN_NUM_SEQ_SPLIT"),
            "CHUNKED_FFN_NUM_SEQ_SPLIT",
        )
    ),
    _idle(
        "POLYMORPHIC_SEQ_LEN_EXCLUSION", list_of(TEXT).or_null(), "it is of exports only", (None,)
    ),
    _refused(
        "PRECOMPUTE_KV_CACHE_PREFIX",
        TEXT.or_null(),
        "send the prefix with each prompt: what prompts have in common is computed once",
        (None,),
    ),
    *(_refused(name, ANYTHING, _DTYPE) for name in ("FPROP_DTYPE", "MODEL_DTYPE")),
    *(
        _refused(name, ANYTHING, 'use QUANTIZE="int8", "int4" or "float8"')
        for name in ("quantization_type", "quant_mode")
    ),
    _refused("USE_FP8", FLAG, 'use QUANTIZE="float8"', (False,)),
    *(_idle(name, FLAG, _LAYOUT) for name in ("USE_REPEATED_LAYER", "COMBINE_QKV")),
)
_BUILT_IN = "the class's architecture has it built in; leave it out"
_ARCHITECTURE = (
    _refused("USE_MQA", ANYTHING, "use NUM_KV_HEADS; 1: one for all heads"),
    *(
        _refused(name, rule, _BUILT_IN, usual)
        for name, rule, usual in (
            ("ACTIVATION_CLS", ANYTHING, ()),
            ("MODEL_CLASS", ANYTHING, ()),
            ("USE_GATED_ACTIVATION", FLAG, ()),
            ("NORM_POLICY", TEXT, ("pre",)),
            ("RMS_NORM_EPSILON", number(0), (1e-5,)),
            ("LAYER_NORM_EPSILON", number(0), (1e-5,)),
            ("LAYERNORM_EPSILON", number(0), (1e-5,)),
            ("SOFTMAX_CAP_LOGITS", number(), ()),
            ("ATTEN_LOGIT_CAP", number(), ()),
            ("SEPARATE_EMBEDDING", FLAG, ()),
            ("TRAINABLE_POSITION_EMB", FLAG, ()),
            ("RELATIVE_BIAS", FLAG, (False,)),
            ("USE_ROTARY_POSITION_EMB", FLAG, ()),
            ("ENABLE_DCONV", FLAG, (False,)),
        )
    ),
)
_TRAINING = tuple(
    _idle(name, ANYTHING, "it is of training")
    for name in (
        *("LEARNING_RATE", "WEIGHT_DECAY", "DROPOUT_PROB", "CLIP_GRADIENT_NORM_TO_VALUE"),
        *("ADAM_BETA1", "ADAM_BETA2", "ADAM_EPSILON", "ADAM_CLIP_THRESHOLD", "DECAY_END"),
        *("LR_SCHEDULE", "LR_COS_WARMUP", "LR_COS_DECAY_START", "LR_COS_DECAY_END"),
        *("LR_COS_MAX", "LR_COS_MIN_RATIO", "TARGET_LOG_PPLX", "PACKED_INPUT"),
        *("CHECKPOINT_POLICY", "CHECKPOINT_EVERY_N_STEPS", "CHECKPOINT_MAX_TO_KEEP"),
        *("SUMMARY_INTERVAL_STEPS", "EVAL_INTERVAL_STEPS", "PROFILER_NUM_STEPS"),
        *("PROFILER_MIN_DURATION_SEC", "PROFILER_CAPTURE_STEP"),
        *("USE_EXPERT_PARALLEL", "USE_CUDNN_FLASH_ATTENTION"),
    )
)
# Groups in the order of the page, each with its heading.
GROUPS: Mapping[str, tuple[SaxmlParameter, ...]] = {
    "Sizes and mesh": _SIZES,
    "Lengths and batches": _BATCHES,
    "Samples and beams": _SAMPLES,
    "Tokens": _TOKENS,
    "Methods and replies": _REPLIES,
    "Memory and kernels": _MEMORY,
    "Architecture": _ARCHITECTURE,
    "Training": _TRAINING,
}


def _by_name(parameters: Iterable[SaxmlParameter]) -> dict[str, SaxmlParameter]:
    return {each.name: each for each in parameters}


SAXML_PARAMETERS: Mapping[str, SaxmlParameter] = _by_name(
    each for group in GROUPS.values() for each in group
)
