"""Overrides of batches, lengths and calls of Saxml's classes have the effect that Saxml's have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_server.engine.buckets import closed_set
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe, model_paths
from sax.errors import InvalidRequest
from sax.overrides.saxml_overrides import SEARCHING, SLOTTED, saxml_class_of
from sax.overrides.saxml_parameter import Verdict
from sax.overrides.saxml_parameters import SAXML_PARAMETERS

ROOT = "saxml.server.pax.lm.params."
LM, GPTJ = f"{ROOT}lm_cloud.LmCloudSpmd2BTest", f"{ROOT}gptj.GPTJ"
LLAMA = f"{ROOT}lm_cloud.LLaMA7B"
CLASSES = [path for path in model_paths() if path.startswith(ROOT)]


def recipe(path: str = LM, **overrides: Any) -> Recipe:
    made = make_recipe(path, None, {key: json.dumps(value) for key, value in overrides.items()})
    assert isinstance(made, Recipe)
    return made


def test_what_is_declared_as_honoured_is_what_classes_read() -> None:
    read = {key for path in CLASSES for key in find(path).overridable}
    declared = {each.verdict: set[str]() for each in SAXML_PARAMETERS.values()}
    for each in SAXML_PARAMETERS.values():
        declared[each.verdict].add(each.name)
    assert declared[Verdict.HONOURED] <= read
    assert not read & (declared[Verdict.IDLE] | declared[Verdict.REFUSED])


def test_the_classes_that_batch_continuously_or_search_are_known_by_name() -> None:
    known = {path: find(path).overridable for path in CLASSES}
    slotted = {saxml_class_of(path) for path, values in known.items() if values["NUM_CACHE_SLOTS"]}
    searching = {
        saxml_class_of(path) for path, values in known.items() if values["USE_BEAM_SEARCH"]
    }
    assert (slotted, searching) == (SLOTTED, SEARCHING)


DOCUMENTED = {
    "BATCH_SIZE": 32,
    "NUM_SAMPLES": 1,
    "BUCKET_KEYS": [256, 512, 1024],
    "TOP_K": 1,
    "INPUT_SEQ_LEN": 1024,
    "MAX_DECODE_STEPS": 1024,
    "EXTRA_INPUTS": {
        "temperature": 0,
        "per_example_max_decode_steps": 1024,
        "per_example_top_k": 1,
        "per_example_top_p": 0,
    },
}


def test_every_class_takes_the_line_of_saxmls_documentation() -> None:
    made = {path: recipe(path, **DOCUMENTED) for path in CLASSES}
    found = {path: (of.max_context, of.defaults.max_tokens) for path, of in made.items()}
    assert found == dict.fromkeys(CLASSES, (2048, 1024))


def test_declared_extra_inputs_are_what_a_call_gets() -> None:
    found = recipe(**DOCUMENTED).defaults
    assert (found.temperature, found.top_k, found.max_tokens) == (0, 1, 1024)
    assert 0 < found.top_p < 1e-6
    stopped = recipe(EXTRA_INPUTS={"eos_id": [0, 1, 7]}).defaults
    assert (stopped.stop_sequence, stopped.ignore_eos) == ((1, 7), True)


def test_what_no_extra_input_declares_is_as_in_saxml() -> None:
    found = recipe(LLAMA, EXTRA_INPUTS={}).defaults
    assert (found.temperature, found.top_p, found.top_k) == (0, 1, 40)
    assert found.max_tokens == 1024, "no per_example_max_decode_steps: MAX_DECODE_STEPS"
    told = recipe(LLAMA, EXTRA_INPUTS={}, TEMPERATURE=0.7, TOP_P=0.5, TOP_K=7).defaults
    assert (told.temperature, told.top_p, told.top_k) == (0.7, 0.5, 7)
    both = recipe(LLAMA, EXTRA_INPUTS={"temperature": 0.1}, TEMPERATURE=0.7).defaults
    assert both.temperature == pytest.approx(0.1)


def test_a_declared_extra_input_without_a_value_is_as_if_it_was_not_declared() -> None:
    """As Saxml's LLaMA70BInt8TPUv5e8 has it."""
    declared = {"temperature": 0.0, "per_example_top_k": 1, "per_example_top_p": None}
    found = recipe(LLAMA, EXTRA_INPUTS=declared).defaults
    assert (found.temperature, found.top_k, found.top_p) == (0, 1, 1)


def test_declared_extra_inputs_stay_within_the_limits_of_the_class() -> None:
    wide = {"per_example_top_k": 200, "per_example_max_decode_steps": 9999}
    found = recipe(LLAMA, EXTRA_INPUTS=wide).defaults
    assert (found.top_k, found.max_tokens) == (40, 1024)
    assert recipe(LLAMA, EXTRA_INPUTS=wide, TOP_K=0).defaults.top_k == 200


def test_a_search_heeds_lengths_of_declared_extra_inputs_only() -> None:
    declared = {"temperature": 0.3, "per_example_top_k": 3, "per_example_max_decode_steps": 64}
    found, plain = recipe(GPTJ, EXTRA_INPUTS=declared).defaults, recipe(GPTJ).defaults
    assert found.max_tokens == 64
    assert (found.temperature, found.top_k) == (plain.temperature, plain.top_k)
    assert found.beam_size == plain.beam_size == 4


def test_a_list_of_batch_sizes_is_compiled() -> None:
    made = recipe(BATCH_SIZE=[1, 4, 16], NUM_SAMPLES=3)
    assert (made.slots, made.batches) == (48, (3, 12, 48))
    buckets = closed_set(48, (1,), batches=made.batches)
    assert [each.decodes for each in buckets if not each.blocks] == [2, 3, 12, 48]
    assert recipe(BATCH_SIZE=4).slots == 8, "two samples each"
    searched = recipe(BATCH_SIZE=[2], USE_BEAM_SEARCH=True)
    assert (searched.slots, searched.batches) == (8, (8,))


def test_slots_replace_batches_and_zero_slots_do_not() -> None:
    assert (recipe(NUM_CACHE_SLOTS=5, BATCH_SIZE=1).slots, recipe(NUM_CACHE_SLOTS=5).batches) == (
        5,
        (),
    )
    none = recipe(f"{ROOT}gemma.Gemma2BFP16", NUM_CACHE_SLOTS=0)
    assert (none.slots, none.batches) == (None, ())
    assert recipe(f"{ROOT}gemma.Gemma2BFP16", NUM_CACHE_SLOTS=0, BATCH_SIZE=4).slots == 4


def test_the_longest_of_several_decode_lengths_counts() -> None:
    made = recipe(INPUT_SEQ_LEN=100, MAX_DECODE_STEPS=[8, 32, 16])
    assert (made.max_context, made.defaults.max_tokens) == (132, 32)


def test_the_length_of_a_sequence_is_the_context() -> None:
    made = recipe(MAX_SEQ_LEN=77)
    assert (made.max_context, made.auto_context) == (77, False)
    with pytest.raises(InvalidRequest, match="MAX_SEQ_LEN make a context of 4096") as caught:
        recipe(GPTJ, MAX_SEQ_LEN=4096)
    assert caught.value.param == "overrides.MAX_SEQ_LEN"


def test_quantised_keys_and_values_are_int8() -> None:
    assert recipe(QUANTIZE_KV=True).kv_cache_dtype == "int8"


def test_replies_are_as_the_class_says() -> None:
    assert recipe(INCLUDE_PREFIX_IN_RESULT=True).replies.begins_with_query
    assert not recipe(SORT_SAMPLES=False).replies.best_first
    assert recipe(GENERATE_ONLY=True).replies.withheld == ("lm.score",)
    assert recipe(SCORE_ONLY=True).replies.withheld == ("lm.generate", "lm.generate_stream")
    assert recipe(ENABLE_GENERATE=False).replies.withheld == ("lm.generate",)
    scored = recipe(SCORING_INCLUDE_EOS_SCORE=True, EOS_ID=7, STOP_TOKEN_IDS=[8, 9]).replies
    assert (scored.scores_end, scored.end_token) == (True, 7)
