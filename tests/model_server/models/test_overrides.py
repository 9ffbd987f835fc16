"""Overrides are checked, never passed over."""

from __future__ import annotations

import pytest

from model_server.models.overrides import apply_overrides
from sax.errors import InvalidRequest

DEFAULTS = {"NUM_LAYERS": 18, "TEMPERATURE": 0.5, "MAX_CONTEXT": None, "DTYPE": "bfloat16"}


def test_values_are_json_and_replace_the_defaults() -> None:
    values = apply_overrides(DEFAULTS, {"NUM_LAYERS": "2", "DTYPE": '"float32"'})
    assert values == DEFAULTS | {"NUM_LAYERS": 2, "DTYPE": "float32"}


def test_a_whole_number_may_stand_for_a_float() -> None:
    assert apply_overrides(DEFAULTS, {"TEMPERATURE": "1"})["TEMPERATURE"] == 1.0


def test_null_and_a_number_may_replace_each_other() -> None:
    assert apply_overrides(DEFAULTS, {"MAX_CONTEXT": "128"})["MAX_CONTEXT"] == 128
    assert apply_overrides(DEFAULTS, {"NUM_LAYERS": "null"})["NUM_LAYERS"] is None


def test_what_is_wrong_is_named() -> None:
    cases = [
        ("num_layer", "2", "did you mean NUM_LAYERS"),
        ("NUM_LAYERS", "two", "not JSON"),
        ("DTYPE", "float32", "strings need double quotes"),
        ("MAX_CONTEXT", "None", "write null"),
        ("NUM_LAYERS", '"2"', "expected int"),
        ("NUM_LAYERS", "true", "expected int"),
        ("NUM_LAYERS", "2.5", "expected int"),
    ]
    for key, text, says in cases:
        with pytest.raises(InvalidRequest, match=says) as caught:
            apply_overrides(DEFAULTS, {key: text})
        assert caught.value.param == f"overrides.{key}"


def test_saxmls_keys_without_a_meaning_here_are_refused_with_the_reason() -> None:
    cases = [
        ("BUCKET_KEYS", "none is padded to a bucket"),
        ("BATCH_SIZE", "use NUM_CACHE_SLOTS"),
        ("EXTRA_INPUTS", "use TEMPERATURE, TOP_K"),
        ("BEAM_SIZE", "extra input beam_size"),
        ("SPM_MODEL", "tokenizer comes from the checkpoint"),
        ("FPROP_DTYPE", "use DTYPE"),
        ("MAX_SEQ_LEN", "use MAX_CONTEXT"),
    ]
    for key, says in cases:
        with pytest.raises(InvalidRequest, match=f"override {key} has no effect here: .*{says}"):
            apply_overrides(DEFAULTS, {key: "1"})


def test_a_model_that_knows_such_a_key_takes_it() -> None:
    assert apply_overrides({"SOS_ID": 0}, {"SOS_ID": "3"}) == {"SOS_ID": 3}


CLASS = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"


def test_a_saxml_class_takes_what_has_no_effect_there() -> None:
    values = apply_overrides(DEFAULTS, {"BUCKET_KEYS": "[128]", "NUM_LAYERS": "2"}, CLASS)
    assert values == DEFAULTS | {"NUM_LAYERS": 2}


def test_a_saxml_class_refuses_what_it_has_not() -> None:
    with pytest.raises(InvalidRequest, match="unknown override 'NUM_KV_HEADS'"):
        apply_overrides(DEFAULTS, {"NUM_KV_HEADS": "2"}, CLASS)
    with pytest.raises(InvalidRequest, match="FPROP_DTYPE.* is not supported: use DTYPE"):
        apply_overrides(DEFAULTS, {"FPROP_DTYPE": '"float32"'}, CLASS)
