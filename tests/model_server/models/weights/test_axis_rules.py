"""Rules are changed one by one, and what is no rule is named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_server.models.registry import make_recipe
from model_server.models.weights.sharding import Rules, parse_rules
from sax.errors import InvalidRequest


def test_without_an_override_weights_are_divided_and_rows_are_not() -> None:
    assert parse_rules(None) == Rules()
    assert [Rules().of(axis) for axis in ("heads", "embed", "tokens", None)] == [
        "model",
        "data",
        None,
        None,
    ]


def test_an_override_changes_what_it_names() -> None:
    assert parse_rules({"experts": "data", "embed": None}) == Rules(experts="data", embed=None)


def test_what_is_no_rule_is_named() -> None:
    cases: list[tuple[Any, str]] = [
        ({"expert": "data"}, 'logical axis, "expert": did you mean experts'),
        ({"experts": "modle"}, 'mesh axis for "experts", "modle": did you mean model'),
        ({"experts": 3}, 'mesh axis for "experts", 3: use replica, data, model or null'),
        ({"experts": ["data"]}, 'mesh axis for "experts"'),
        (["data"], r'SHARDING_RULES is \["data"\]: give an object'),
        ("data", "give an object"),
    ]
    for given, said in cases:
        with pytest.raises(InvalidRequest, match=said) as refused:
            parse_rules(given)
        assert refused.value.param == "overrides.SHARDING_RULES"


@pytest.mark.parametrize("path", ["lm_cloud.LmCloudSpmd2BTest", "gptj.GPTJ"])
def test_saxmls_classes_take_rules_too(path: str) -> None:
    rules = json.dumps({"tokens": "data"})
    recipe = make_recipe(f"pax.lm.params.{path}", None, {"SHARDING_RULES": rules})
    assert recipe.rules == Rules(tokens="data")
