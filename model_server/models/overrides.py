"""Checks a publish's overrides against the keys that a model class declares.

As in Saxml, each key must exist on the class and each value is JSON of the same type as the value
it replaces, unless one of the two is null. Unlike Saxml, errors are never ignored.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from sax.errors import InvalidRequest
from sax.format import quoted, shortened

_BY_REQUEST = "a request asks for a beam search with the extra input beam_size"
_NO_BUCKETS = "prompts of any length run in chunks, so there are no buckets to choose"
_NO_WAIT = "requests join the running batch at every step, without waiting for others"
_OWN_TOKENIZER = "the tokenizer comes from the checkpoint"
_EVERY_METHOD = "every model generates, streams and scores"
_ANY_INPUT = "every model takes texts and token ids"
# Keys of Saxml's classes that have no effect here, and why.
_SAXML_ONLY: Mapping[str, str] = {
    "BEAM_SIZE": _BY_REQUEST,
    "TOKENS_PER_BEAM": "a request asks for it with the extra input tokens_per_beam",
    "LENGTH_NORM_ALPHA": _BY_REQUEST,
    "BEAM_SEARCH_EARLY_EXIT": _BY_REQUEST,
    "USE_MATMUL_BEAM_SHUFFLE": "hypotheses share their pages, so nothing is shuffled",
    "MIN_DECODE_STEPS": _BY_REQUEST,
    "USE_BEAM_SEARCH": _BY_REQUEST,
    "BUCKET_KEYS": _NO_BUCKETS,
    "BATCH_WAIT_SECS": _NO_WAIT,
    "BATCHING_WAIT_SECS": _NO_WAIT,
    "MAX_LIVE_BATCHES": "the server's --queue flag limits how many requests may wait",
    "MAX_SEQ_LEN": "use MAX_CONTEXT",
    "DECODE_MESH_TRANSPOSE": "one mesh, ICI_MESH_SHAPE, serves prompts and answers",
    "DCN_MESH_SHAPE": "there is only one mesh, ICI_MESH_SHAPE",
    "FPROP_DTYPE": "use DTYPE",
    "MODEL_DTYPE": "use DTYPE",
    "QUANTIZE_KV": "use KV_CACHE_DTYPE",
    "USE_MQA": "use NUM_KV_HEADS",
    "EXTRA_INPUTS": "use TEMPERATURE, TOP_K, TOP_P and MAX_DECODE_STEPS",
    "TOP_K_RECALL_TARGET": "top-k is exact",
    "SORT_SAMPLES": "samples come best first",
    "SPM_MODEL": _OWN_TOKENIZER,
    "VOCABULARY_CLASS": _OWN_TOKENIZER,
    "VOCABULARY_PATH": _OWN_TOKENIZER,
    "SOS_ID": _OWN_TOKENIZER,
    "PREPEND_SOS": _OWN_TOKENIZER,
    "TOKENIZED_INPUT": _ANY_INPUT,
    "TOKENIZED_OUTPUT": _ANY_INPUT,
    "ENABLE_GENERATE": _EVERY_METHOD,
    "ENABLE_GENERATE_STREAM": _EVERY_METHOD,
    "GENERATE_ONLY": _EVERY_METHOD,
    "SCORE_ONLY": _EVERY_METHOD,
    "STREAM_INTERVAL_STEPS": "tokens are streamed as they come",
    "SLICE_LEFT": "prompts are never truncated; one that is too long is rejected",
    "FAIL_ON_INPUT_TRUNCATION": "prompts are never truncated; one that is too long is rejected",
}


def apply_overrides(defaults: Mapping[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return the class's values with overrides applied. Raises InvalidRequest naming the key."""
    values = dict(defaults)
    for key, text in overrides.items():
        if key not in defaults:
            raise InvalidRequest(_unknown(key, defaults), param=f"overrides.{key}")
        values[key] = _checked(key, text, defaults[key])
    return values


def _unknown(key: str, defaults: Mapping[str, Any]) -> str:
    if reason := _SAXML_ONLY.get(key):
        return f"override {key} has no effect here: {reason}"
    close = difflib.get_close_matches(key.upper(), defaults, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown override {quoted(key)}: {hint}this model takes {', '.join(sorted(defaults))}"


def _checked(key: str, text: str, default: Any) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"override {quoted(key)}={shortened(text)} is not JSON ({error.msg}): "
            "strings need double quotes",
            param=f"overrides.{key}",
        ) from error
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if value is not None and default is not None and type(value) is not type(default):
        raise InvalidRequest(
            f"override {key}={shortened(text)} is a {type(value).__name__}, expected "
            f"{type(default).__name__} like the default {json.dumps(default)}",
            param=f"overrides.{key}",
        )
    return value
