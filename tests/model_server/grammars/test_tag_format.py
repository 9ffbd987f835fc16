"""Structural tags as trees of formats: what they let through, and what is refused by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_server.grammars.constraint import Constraint, read_constraint
from sax.errors import InvalidRequest
from tests.each_case import each_case
from tests.model_server.grammars.test_compiler import tokenizer
from tests.model_server.grammars.test_grammar_state import matcher_of

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
ANY = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def several(kind: str, *elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "elements": list(elements)}


def accepts(tree: dict[str, Any], text: str) -> bool:
    """True if the text is a whole answer."""
    matcher = matcher_of(Constraint("structural_tag", json.dumps({"format": tree})))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer().encode_continuation(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


CALLS = {
    "type": "triggered_tags",
    "triggers": ["<call"],
    "tags": [tag("<call=f>", NUMBER, "</call>"), tag("<call=g>", ANY, "</call>")],
}


@each_case(
    "tree, whole, not_whole",
    [
        (const('a "b"'), ['a "b"'], ["a", "b"]),
        ({"type": "regex", "pattern": "[a-z]+/[0-9]"}, ["ab/3"], ["ab/", "3"]),
        ({"type": "grammar", "grammar": 'root ::= "x" "y"+'}, ["xyy"], ["x", "y"]),
        (several("sequence", const("n="), NUMBER, const(";")), ["n=12;"], ["n=12", "12;"]),
        (several("or", const("yes"), const("no")), ["yes", "no"], ["maybe", "ye"]),
        (tag("<t>", ANY, "</t>"), ["<t>a <b> c</t>"], ["<t>a", "<t>a</t> b"]),
        (several("sequence", tag("<t>", ANY, "</t>"), ANY), ["<t>why</t>so"], ["so"]),
        (
            CALLS,
            ["hello", "so <call=f>3</call> and <call=g>x</call> end"],
            ["<call=f>x", "<call=h>"],
        ),
        ({**CALLS, "at_least_one": True}, ["a <call=f>3</call>"], ["hello"]),
        ({**CALLS, "stop_after_first": True}, ["a <call=f>3</call>", "a"], ["<call=f>3</call> b"]),
        (
            {
                "type": "tags_with_separator",
                "tags": [tag("<a>", NUMBER, "</a>")],
                "separator": ",",
            },
            ["", "<a>1</a>", "<a>1</a>,<a>2</a>"],
            ["<a>1</a>,", "<a>1</a><a>2</a>"],
        ),
    ],
)
def test_answers_are_what_the_format_says(
    tree: dict[str, Any], whole: list[str], not_whole: list[str]
) -> None:
    assert [text for text in whole if not accepts(tree, text)] == []
    assert [text for text in not_whole if accepts(tree, text)] == []


def test_control_tokens_in_a_text_are_those_tokens() -> None:
    tree = tag("<|im_start|>", NUMBER, "")
    asked = Constraint("structural_tag", json.dumps({"format": tree}))
    source = read_constraint(asked, SPECIALS).grammar
    assert "<[1]>" in json.loads(source)["grammars"][0]["lark_grammar"]
    assert "<|im_start|>" not in json.loads(source)["grammars"][0]["lark_grammar"]


SPECIALS = {"<|im_start|>": 1}


def deep() -> dict[str, Any]:
    tree = const("x")
    for _ in range(40):
        tree = several("sequence", tree)
    return tree


@each_case(
    "tree, path",
    [
        ({"type": "qwen_xml_parameter"}, "format"),
        (several("sequence", ANY, const("x")), "format.elements[0]"),
        (several("sequence", CALLS, const("x")), "format.elements[0]"),
        ({**CALLS, "excludes": ["x"]}, "format.excludes"),
        ({**CALLS, "triggers": ["<other"]}, "format.tags[0].begin"),
        ({**CALLS, "tags": [const("x")]}, "format.tags[0]"),
        (several("or"), "format.elements"),
        (tag("<t>", {"type": "any_text", "excludes": ["a"]}, "</t>"), "format.content.excludes"),
        ({"type": "tag", "begin": "a", "content": NUMBER, "end": ["b", "c"]}, "format.end"),
        ({"type": "const_string"}, "format.value"),
        ({"type": "json_schema", "json_schema": 3}, "format.json_schema"),
        (deep(), "nested"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_its_path(tree: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_constraint(Constraint("structural_tag", json.dumps({"format": tree})), {})
    assert refused.value.param == "structural_tag"
    assert path in str(refused.value)
