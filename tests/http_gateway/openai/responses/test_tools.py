"""Tools of /v1/responses, under the names that models call."""

from __future__ import annotations

from typing import Any

import pytest

from http_gateway.openai.responses.tools import CalledTool, read_offered, told_tools
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.each_case import each_case

FUNCTION = {"type": "function", "name": "f", "strict": None, "defer_loading": True}
SEARCH = {"type": "web_search", "external_web_access": False}
SPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "description": "Finds one."},
        {"type": "custom", "name": "note"},
    ],
}
EMPTY = {"type": "namespace", "name": "empty", "tools": []}


def test_tools_of_a_namespace_are_functions_that_begin_with_its_name() -> None:
    offered = read_offered([FUNCTION, SPACE, EMPTY], None)
    assert [tool.name for tool in offered.tools] == ["f", "crm__find", "crm__note"]
    assert offered.tools[1].description == (
        "Tools whose names begin with crm__: Customers.\n\nFinds one."
    )
    assert offered.called == {
        "f": CalledTool("f"),
        "crm__find": CalledTool("find", "crm"),
        "crm__note": CalledTool("note", "crm", custom=True),
    }


def test_tools_that_no_client_can_run_are_left_out_beside_others() -> None:
    for choice in (None, "auto", "none"):
        offered = read_offered([SEARCH, FUNCTION], choice)
        assert ([tool.name for tool in offered.tools], offered.left_out) == (["f"], ("web_search",))
    (told,) = told_tools([SEARCH, FUNCTION])
    assert (told["name"], told["strict"], told["parameters"]) == ("f", False, None)


@each_case("tools, choice, param", [
    ([SEARCH], None, "tools[0].type"),
    ([FUNCTION, SEARCH], "required", "tools[1].type"),
    ([FUNCTION, SEARCH], {"type": "web_search"}, "tools[1].type"),
    ([FUNCTION, {"type": "file_search"}], None, "tools[1].type"),
    ([{**SPACE, "name": "a b"}], None, "tools[0].name"),
    ([{**SPACE, "tools": {}}], None, "tools[0].tools"),
    ([{**SPACE, "tools": [SEARCH]}], None, "tools[0].tools[0].type"),
    ([{**SPACE, "tools": [{"type": "function", "name": "x" * 128}]}], None,
     "tools[0].tools[0].name"),
    ([{**FUNCTION, "name": "crm__find"}, SPACE], None, "tools[1].name"),
    ([{**FUNCTION, "defer_loading": 1}], None, "tools[0].defer_loading"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(
    tools: list[dict[str, Any]], choice: object, param: str
) -> None:
    with pytest.raises((InvalidRequest, UnsupportedParameter)) as caught:
        read_offered(tools, choice)
    assert caught.value.param == param
