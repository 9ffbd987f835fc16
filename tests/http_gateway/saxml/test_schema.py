import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from http_gateway.saxml.schema import GenerateBody, PublishBody, read_overrides
from tests.each_case import each_case

MODEL = {"model": "m", "model_path": "p", "checkpoint": "None"}
DEFAULTS = {
    "temperature": 0.5,
    "per_example_max_decode_steps": 128,
    "per_example_top_k": 200,
    "per_example_top_p": 0.95,
}


def generate(**fields: object) -> GenerateBody:
    return GenerateBody.model_validate_json(json.dumps({"model": "m", "query": "q", **fields}))


@each_case("replicas, number", [(1, 1), ("1", 1), (0, 0), ("12", 12)])
def test_replicas_may_be_text(replicas: object, number: int):
    assert PublishBody.model_validate({**MODEL, "replicas": replicas}).replicas == number


@each_case("replicas", [True, "one", 1.5, -1, None, 2**31, "", [1]])
def test_anything_else_is_not_a_number_of_replicas(replicas: object):
    with pytest.raises(ValidationError) as caught:
        PublishBody.model_validate({**MODEL, "replicas": replicas})
    assert caught.value.errors()[0]["loc"] == ("replicas",)


def test_a_field_nobody_knows_is_refused():
    with pytest.raises(ValidationError) as caught:
        PublishBody.model_validate({**MODEL, "replicas": 1, "acl": "x"})
    assert caught.value.errors()[0]["loc"] == ("acl",)


@each_case("overrides, texts", [
    ("A=1", {"A": "1"}),
    ('A=1  B="x y" C=[1, 2] D=null', {"A": "1", "B": '"x y"', "C": "[1, 2]", "D": "null"}),
    ("", {}),
    ({"A": 1, "B": [1, 2], "C": '"text"', "D": "8"},
     {"A": "1", "B": "[1, 2]", "C": '"text"', "D": "8"}),
    ({}, {}),
])  # fmt: skip
def test_overrides_are_json_texts_however_they_are_written(
    overrides: object, texts: dict[str, str]
):
    assert read_overrides(overrides) == texts


@each_case("overrides", ["A", "A=", "=1", "A=x", "A=1B=2", "A B=1", {"A": "x"}])
def test_overrides_that_are_not_json_text_are_told_how_to_be(overrides: object):
    with pytest.raises(ValueError, match=r"KEY=VALUE|quotes|space"):
        read_overrides(overrides)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), json_values))
def test_text_and_object_mean_the_same(values: dict[str, object]):
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    expected = {key: json.dumps(value) for key, value in values.items()}
    assert read_overrides(text) == expected
    assert read_overrides(expected) == expected


def test_omitted_extra_inputs_are_generation_2s_defaults_and_null_is_the_models_own():
    assert generate().effective_extra_inputs() == DEFAULTS
    assert generate(extra_inputs={}).effective_extra_inputs() == DEFAULTS
    assert generate(extra_inputs=None).effective_extra_inputs() is None


def test_given_extra_inputs_are_laid_over_the_defaults():
    given_ = {"temperature": 0, "eos_id": [1, 2], "per_example_top_k": 1}
    assert generate(extra_inputs=given_).effective_extra_inputs() == {**DEFAULTS, **given_}


def test_generation_2s_own_numbers_may_be_texts():
    body = generate(extra_inputs={"temperature": "0.25", "per_example_top_k": "40", "style": "7"})
    told = body.effective_extra_inputs()
    assert told == {**DEFAULTS, "temperature": 0.25, "per_example_top_k": 40.0, "style": "7"}


@each_case("value", ["hot", "nan", "inf", ""])
def test_a_text_that_is_no_number_stays_for_the_model_server_to_refuse(value: str):
    told = generate(extra_inputs={"temperature": value}).effective_extra_inputs()
    assert told == {**DEFAULTS, "temperature": value}


@each_case("value", [True, None, {}, [[1]], ["x"]])
def test_an_extra_input_of_another_kind_is_refused_by_its_key(value: object):
    with pytest.raises(ValidationError) as caught:
        generate(extra_inputs={"temperature": value})
    assert caught.value.errors()[0]["loc"][:2] == ("extra_inputs", "temperature")
