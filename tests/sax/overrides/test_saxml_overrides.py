"""Overrides of Saxml's classes are checked, and warned of, from the spec alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.errors import InvalidRequest
from sax.overrides.saxml_overrides import override_warnings, read_saxml_overrides
from sax.overrides.saxml_parameters import SAXML_PARAMETERS
from tests.each_case import each_case

LM = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SLOTTED = "pax.lm.params.gemma.Gemma2BFP16"
SEARCHING = "saxml.server.pax.lm.params.gptj.GPTJ"


def warned(path: str, **values: Any) -> list[str]:
    """Return the names that warnings begin with."""
    texts = {key: json.dumps(value) for key, value in values.items()}
    return [warning.split()[0] for warning in override_warnings(path, texts)]


def test_each_override_without_effect_has_a_sentence_that_says_why() -> None:
    found = override_warnings(LM, {"BUCKET_KEYS": "[128]", "BATCH_WAIT_SECS": "0.1"})
    assert found == (
        "BATCH_WAIT_SECS has no effect here: requests join the running batch at every step, "
        "without waiting for others",
        "BUCKET_KEYS has no effect here: prompts of any length run in chunks, so none is padded to "
        "a bucket",
    )


def test_what_is_so_anyway_or_has_an_effect_is_not_warned_of() -> None:
    assert not warned(LM, NUM_LAYERS=2, BUCKET_KEYS=None, ENABLE_GENERATE_STREAM=True)
    assert not warned(LM, TOP_K_RECALL_TARGET=1.0, STREAM_INTERVAL_STEPS=1, SUFFIX_SEQ_LEN=0)


@each_case("path", ["llama", "auto", "mine.Model", "saxml.server.torch.vllm.Gemma4B"])
def test_paths_of_another_kind_are_left_to_their_servers(path: str) -> None:
    anything = {"BUCKET_KEYS": '"mine"', "FPROP_DTYPE": "1", "ANY": "1"}
    assert read_saxml_overrides(path, anything) == {}
    assert override_warnings(path, anything) == ()


def test_a_prefill_batch_is_warned_of_beside_slots_only() -> None:
    assert warned(LM, BATCH_SIZE=4) == []
    assert warned(LM, BATCH_SIZE=4, NUM_CACHE_SLOTS=8) == ["BATCH_SIZE"]
    assert warned(SLOTTED, BATCH_SIZE=[1, 4]) == ["BATCH_SIZE"]
    assert warned(SLOTTED, BATCH_SIZE=1) == [], "as Saxml's documentation asks for"
    assert warned(SLOTTED, BATCH_SIZE=4, NUM_CACHE_SLOTS=0) == []


def test_a_search_has_no_samples_and_samples_have_no_beams() -> None:
    assert warned(LM, BEAM_SIZE=2, MIN_DECODE_STEPS=3) == ["BEAM_SIZE", "MIN_DECODE_STEPS"]
    assert warned(LM, BEAM_SIZE=2, USE_BEAM_SEARCH=True) == []
    assert warned(SEARCHING, BEAM_SIZE=2) == []
    assert warned(SEARCHING, TOP_K=3, TEMPERATURE=1) == ["TEMPERATURE", "TOP_K"]
    declared = {"temperature": 1, "per_example_max_decode_steps": 8}
    assert warned(SEARCHING, EXTRA_INPUTS=declared) == ["temperature"]


@each_case(
    "declared, says",
    [
        ({"heat": 1}, "heat is not supported; supported: .*temperature"),
        ({"temperature": "hot"}, "'temperature' is 'hot': give a number"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": [0.1, 0.2]}, "declare one number"),
        ({"temperature": True}, "'temperature' is True"),
        ({"heat": None}, "'heat' is None"),
        ({"per_example_max_decode_steps": 0}, "per_example_max_decode_steps"),
        ({"eos_id": 1}, "eos_id"),
        ({"eos_id": [0, 0]}, "holds no token"),
        ({"eos_id": []}, "'eos_id' is "),
    ],
)
def test_declared_extra_inputs_are_checked(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"override EXTRA_INPUTS: .*{says}") as caught:
        read_saxml_overrides(LM, {"EXTRA_INPUTS": json.dumps(declared)})
    assert caught.value.param == "overrides.EXTRA_INPUTS"


def test_a_search_needs_a_step_in_which_to_end() -> None:
    steps = {"MIN_DECODE_STEPS": "64", "MAX_DECODE_STEPS": "[32, 64]"}
    with pytest.raises(InvalidRequest, match="MIN_DECODE_STEPS is 64 and MAX_DECODE_STEPS 64"):
        read_saxml_overrides(SEARCHING, steps)
    assert read_saxml_overrides(LM, steps)["MIN_DECODE_STEPS"] == 64, "without a search it is idle"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 2) | st.text(max_size=3),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(sorted(SAXML_PARAMETERS)), VALUES, max_size=4))
def test_any_overrides_are_read_or_refused_by_name_and_warnings_never_fail(
    values: dict[str, Any],
) -> None:
    texts = {key: json.dumps(value) for key, value in values.items()}
    for path in (LM, SLOTTED, SEARCHING):
        told, refused = override_warnings(path, texts), None
        try:
            assert read_saxml_overrides(path, texts).keys() == values.keys()
        except InvalidRequest as error:
            refused = error.param
        if refused is not None:
            assert refused.removeprefix("overrides.") in values
            assert told == ()
