"""Each parameter of Saxml's classes has one verdict, and its values are checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sax.errors import InvalidRequest
from sax.overrides.saxml_parameter import SaxmlParameter, Verdict
from sax.overrides.saxml_parameters import GROUPS, SAXML_PARAMETERS
from tests.each_case import each_case

# Attributes of ServingTemplate, as its source lists them, and those that its classes add.
TEMPLATE = """
ICI_MESH_SHAPE USE_BEAM_SEARCH BEAM_SEARCH_EARLY_EXIT USE_MATMUL_BEAM_SHUFFLE BATCH_SIZE
BATCH_WAIT_SECS INPUT_SEQ_LEN FAIL_ON_INPUT_TRUNCATION SUFFIX_SEQ_LEN MIN_DECODE_STEPS
MAX_DECODE_STEPS MAX_SEQ_LEN NUM_SAMPLES TOP_K TEMPERATURE TOP_K_RECALL_TARGET
USE_TOP_K_FOR_LOGPROBS BEAM_SIZE TOKENS_PER_BEAM FPROP_FOR_PREFIX GLOBAL_NORMALIZE VOCAB_SIZE
LENGTH_NORM_ALPHA SCORE_ONLY GENERATE_ONLY SPM_MODEL TOKENIZED_INPUT TOKENIZED_OUTPUT PREPEND_SOS
EOS_PADDING_AND_NO_SOS VOCABULARY_CLASS VOCABULARY_PATH SOS_ID EOS_ID STOP_TOKEN_IDS SLICE_LEFT
EXTRA_INPUTS EXTRA_INPUTS_DTYPES SCORE_EXTRA_INPUTS BUCKET_KEYS INCLUDE_PREFIX_IN_RESULT
MAX_LIVE_BATCHES ENABLE_GENERATE ENABLE_GENERATE_STREAM STREAM_INTERVAL_STEPS DECODE_MESH_TRANSPOSE
SUPPORT_LAZY_PREFIX_BROADCAST EMB_LOOKUP_STYLE FETCH_PREFIX_LENGTHS_FROM_INPUTS
POLYMORPHIC_SEQ_LEN_EXCLUSION SORT_SAMPLES TEXT_TO_EMBEDDING_SERVING_BATCH_SIZE
TEXT_TO_EMBEDDING_MAX_LIVE_BATCHES TEXT_TO_EMBEDDING_OUTPUT_EMBEDDING_NAME
TEXT_TO_EMBEDDING_MODEL_METHOD_NAME GENERATION_USE_GEOMEAN_PROB_SCORE SCORING_USE_GEOMEAN_PROB_SCORE
SCORING_INCLUDE_EOS_SCORE NUM_EXTRA_IDS REVERSE_EXTRA_IDS NUM_CACHE_SLOTS NEXT_TOKEN_SAMPLER_TPL
PRECOMPUTE_KV_CACHE_PREFIX INCLUDE_EOS_SCORE GRADIENT_WRT_INPUT_TENSOR_NAMES
GRADIENT_WRT_MDL_VAR_TENSOR_NAMES
"""
CLASSES = """
NUM_LAYERS DIMS_PER_HEAD NUM_HEADS MODEL_DIMS HIDDEN_DIMS FPROP_DTYPE MODEL_DTYPE USE_MQA
GPU_FLASH_DECODING ACTIVATION_CLS USE_GATED_ACTIVATION RMS_NORM_EPSILON DCN_MESH_SHAPE
USE_BATCH_SHARDING QUANTIZE_KV ATTEN_NUM_SEQ_SPLITS NUM_KV_HEADS BATCHING_WAIT_SECS
CHUNKED_ONE_STEP_ATTN_NUM_SEQ_SPLIT CHUNKED_FFN_NUM_SEQ_SPLIT ROTARY_DIM MAX_POSITION_EMBEDDINGS
NORM_POLICY LAYER_NORM_EPSILON TRAINING_OPTIMIZED_SHARDING TOKENIZED USE_REPEATED_LAYER
TRAINABLE_POSITION_EMB TRAINABLE_PE_MAX_SEQ_LEN EMBEDDING_LOOKUP_STYLE quantization_type quant_mode
"""


def test_every_attribute_of_saxmls_template_and_classes_is_declared_once() -> None:
    assert {*TEMPLATE.split(), *CLASSES.split()} <= SAXML_PARAMETERS.keys()
    assert sum(map(len, GROUPS.values())) == len(SAXML_PARAMETERS)


@each_case("each", SAXML_PARAMETERS.values())
def test_a_usual_value_is_accepted_and_warned_of_by_nobody(each: SaxmlParameter) -> None:
    for value in each.usual:
        assert each.read(json.dumps(value)) == value
        assert each.warning(value) is None
    assert "|" not in each.why
    assert not each.usual or each.verdict is not Verdict.HONOURED


@each_case(
    "name, good, bad",
    [
        ("BATCH_SIZE", [1, [1, 4], None], [0, [], [0], 1.5, True, "1", {}]),
        ("MAX_DECODE_STEPS", [1, [128, 512]], [None, 0, [1, "2"]]),
        ("BUCKET_KEYS", [[128], None], [128, [], [0]]),
        ("NUM_CACHE_SLOTS", [0, 3, None], [-1, "3"]),
        ("TEMPERATURE", [0, 0.5], [-0.1, None, "0", True]),
        ("TOP_P", [1, 0.5], [0, 1.1, None]),
        ("TOP_K_RECALL_TARGET", [1.0, 0.9], [1.1, "1"]),
        ("ICI_MESH_SHAPE", [[1, 1, 4], None], [[1, 4], [1, 1, 0], 4]),
        ("EXTRA_INPUTS", [{"temperature": 0.1}, {}, None], [[], 1, "x"]),
        ("DECODE_MESH_TRANSPOSE", [{"fprop_mdl": "mdl"}, None], [[1]]),
        ("SLICE_LEFT", [True, False], [0, None, "true"]),
        ("SPM_MODEL", ["gs://bucket/a.model", None], [3]),
        ("STOP_TOKEN_IDS", [[1, 7], 1, None], [[-1], "1"]),
        ("BEAM_SIZE", [1, 16], [0, 17]),
        ("GRADIENT_WRT_INPUT_TENSOR_NAMES", [["embeddings"], None], [[1], "embeddings"]),
    ],
)
def test_values_are_checked_for_kind_and_range(name: str, good: list[Any], bad: list[Any]) -> None:
    parameter = SAXML_PARAMETERS[name]
    assert [parameter.read(json.dumps(value)) for value in good] == good
    for value in bad:
        with pytest.raises(InvalidRequest, match=f"override {name}=.*: give ") as caught:
            parameter.read(json.dumps(value))
        assert caught.value.param == f"overrides.{name}"


@each_case(
    "name, value, says",
    [
        ("PREPEND_SOS", False, "add_bos_token"),
        ("FPROP_DTYPE", "float32", "use DTYPE"),
        ("USE_MQA", True, "use NUM_KV_HEADS"),
        ("PRECOMPUTE_KV_CACHE_PREFIX", "Once", "send the prefix with each prompt"),
        ("SCORE_EXTRA_INPUTS", {"temperature": 0.1}, "Score takes no extra inputs"),
        ("TEXT_TO_EMBEDDING_MODEL_METHOD_NAME", "encode", "use TASKS="),
        ("RMS_NORM_EPSILON", 1e-6, "built in"),
    ],
)
def test_what_means_something_that_is_not_here_is_refused_with_the_remedy(
    name: str, value: Any, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"override {name}=.* is not supported: .*{says}"):
        SAXML_PARAMETERS[name].read(json.dumps(value))


@each_case(
    "text, says",
    [
        ("None", "write null"),
        ("True", "write true"),
        ("{'a': 1}", "double quotes"),
        ("x", "quotes"),
    ],
)
def test_what_is_not_json_is_refused_with_how_to_write_it(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is not JSON: .*{says}") as caught:
        SAXML_PARAMETERS["EXTRA_INPUTS"].read(text)
    assert caught.value.param == "overrides.EXTRA_INPUTS"
