"""Overrides, those of chats and draft tokens among them, are checked, never passed over."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.overrides import (
    CHAT_DEFAULTS,
    ChatSettings,
    Speculation,
    apply_overrides,
    parse_chat,
    parse_speculation,
)
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


def test_a_publication_may_say_how_its_model_chats() -> None:
    assert parse_chat(CHAT_DEFAULTS) == ChatSettings()
    said = {"CHAT_TEMPLATE": "{{ x }}", "TOOL_PARSER": "hermes", "REASONING_PARSER": "none"}
    assert parse_chat(said) == ChatSettings("{{ x }}", "hermes", "none")


@pytest.mark.parametrize(
    "wrong",
    [{"CHAT_TEMPLATE": ""}, {"TOOL_PARSER": "xml"}, {"REASONING_PARSER": 3}, {"TOOL_PARSER": []}],
)
def test_what_is_not_known_is_refused_by_its_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat({**CHAT_DEFAULTS, **wrong})
    assert refused.value.param == f"overrides.{next(iter(wrong))}"


def test_what_is_asked_for_is_made() -> None:
    cases = [
        (None, 8, Speculation(8, asked=False)),
        (None, 3, Speculation(3, asked=False)),
        ("ngram", 32, Speculation(32, asked=True)),
        ("off", 8, Speculation(0, asked=False)),
    ]
    for mode, draft_tokens, made in cases:
        assert parse_speculation({"SPECULATION": mode, "MAX_GUESSES": draft_tokens}) == made


def test_anything_else_is_refused_by_name() -> None:
    cases = [
        ("medusa", 8, "SPECULATION must be .*not 'medusa'"),
        (7, 8, "SPECULATION must be"),
        (None, 0, "MAX_GUESSES is 0; it must be from 1 to 32"),
        ("ngram", 33, "MAX_GUESSES is 33"),
        (None, None, "MAX_GUESSES is None"),
        ("off", 4, 'MAX_GUESSES is 4, and SPECULATION "off" makes no draft tokens'),
    ]
    for mode, draft_tokens, complaint in cases:
        with pytest.raises(InvalidRequest, match=complaint):
            parse_speculation({"SPECULATION": mode, "MAX_GUESSES": draft_tokens})


DRAFT = {"SPECULATION": "draft", "MAX_GUESSES": 5, "DRAFT_MODEL": "/models/small.gguf"}


def test_a_draft_model_is_asked_for_by_name() -> None:
    made = parse_speculation({**DRAFT, "DRAFT_QUANTIZE": "stored"})
    assert made == Speculation(5, asked=True, draft="/models/small.gguf", draft_quantize="stored")


def test_settings_of_a_draft_model_that_contradict_each_other_are_refused() -> None:
    cases: list[tuple[dict[str, object], str, str]] = [
        (
            {"DRAFT_MODEL": None},
            'SPECULATION is "draft", and DRAFT_MODEL is missing',
            "DRAFT_MODEL",
        ),
        ({"DRAFT_MODEL": ""}, "DRAFT_MODEL is ''; give a checkpoint", "DRAFT_MODEL"),
        ({"SPECULATION": None}, "DRAFT_MODEL is '/models/small.gguf', which needs", "DRAFT_MODEL"),
        ({"SPECULATION": "ngram"}, 'needs SPECULATION "draft"', "DRAFT_MODEL"),
        (
            {"SPECULATION": None, "DRAFT_MODEL": None, "DRAFT_QUANTIZE": "int8"},
            "DRAFT_QUANTIZE is 'int8', which needs",
            "DRAFT_QUANTIZE",
        ),
    ]
    for changes, complaint, param in cases:
        with pytest.raises(InvalidRequest, match=complaint) as caught:
            parse_speculation({**DRAFT, **changes})
        assert caught.value.param == f"overrides.{param}"
