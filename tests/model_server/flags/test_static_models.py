"""The lists of models to load at start are read as Saxml's servers read them."""

from __future__ import annotations

import pytest

from model_server.flags.static_models import StaticFlags, static_models
from sax.errors import InvalidName
from sax.types import ModelSpec, static_version

ONE, TWO = "/sax/test/one", "/sax/test/two"


def read(overrides: str = "", **changes: str) -> tuple[ModelSpec, ...]:
    lists = {"keys": f"{ONE}, {TWO}", "checkpoints": "None,gs://b/c", **changes}
    return static_models(StaticFlags(models=["llama,lm_cloud.X"], overrides=overrides, **lists))


def test_the_lists_name_models_in_the_same_order() -> None:
    one, two = read()
    assert (one.model_id, one.model_path, one.checkpoint) == (ONE, "llama", "None")
    assert (two.model_id, two.model_path, two.checkpoint) == (TWO, "lm_cloud.X", "gs://b/c")
    assert one.overrides == two.overrides == {}


def test_without_models_there_are_none() -> None:
    assert static_models(StaticFlags()) == ()


def test_overrides_are_a_json_object_for_each() -> None:
    for text in (
        '{"BATCH_SIZE": 4, "MESH": [1, 2]},{"QUANT": "int8"}',
        '{"BATCH_SIZE": 4, "MESH": [1, 2]}; {"QUANT": "int8"}',
        # As absl's lists want a comma written:
        '"{""BATCH_SIZE"": 4, ""MESH"": [1, 2]}","{""QUANT"": ""int8""}"',
        # Saxml's servers hand on the text of a value, which must be JSON itself:
        '{"BATCH_SIZE": "4", "MESH": "[1, 2]"},{"QUANT": "\\"int8\\""}',
    ):
        one, two = read(text)
        assert one.overrides == {"BATCH_SIZE": "4", "MESH": "[1, 2]"}, text
        assert two.overrides == {"QUANT": '"int8"'}, text


def test_what_does_not_go_together_is_refused() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"keys": ONE}, "--models names 2 model paths, --model_keys 1 keys"),
        ({"checkpoints": ""}, "--checkpoints 0 checkpoints: give as many of each"),
        ({"keys": f"{ONE},{ONE}"}, f"--model_keys names {ONE} twice"),
        ({"overrides": "{}"}, "has 1 JSON objects for 2 models"),
        ({"overrides": "{},[]"}, r"has \[\]: give one JSON object"),
        ({"overrides": '{},{"A"}'}, "is not JSON"),
    ]
    for changes, words in cases:
        with pytest.raises(ValueError, match=words):
            read(**changes)


def test_a_key_names_its_cell() -> None:
    with pytest.raises(InvalidName):
        read(keys=f"{ONE},two")


def test_models_made_of_the_same_have_the_same_version() -> None:
    one, two = read('{"A": 1, "B": [1,2]},{}')
    published = ModelSpec(
        model_id="/sax/test/other",
        model_path="saxml.server.llama",
        checkpoint="None",
        replicas=2,
        overrides={"B": "[1, 2]", "A": "1"},
    )
    assert one.version == static_version(published) != two.version
    assert len(bytes.fromhex(one.version)) == 16
