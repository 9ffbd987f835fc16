"""Golden conversations of every family, and random ones in every form: no call is lost or invented,
in one piece and in any split of the stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sax.call_form import NAME, CallForm, decoded, encoded
from sax.chat import AnswerFormat, ReasoningParser
from tests.each_case import each_case
from tests.sax.dialects.texts import TOOLS, parsed
from tests.sax.dialects.written import Call, kind_of, marks_of, written

GOLDEN: dict[str, Any] = json.loads(Path("tests/golden/calls.json").read_text())


@cache
def form_of(family: str) -> CallForm:
    return msgspec.convert(GOLDEN[family]["dialect"]["calls"], CallForm)


FORMS = [family for family in GOLDEN if GOLDEN[family]["dialect"]["calls"]]
DISTINCT = [*{encoded(form_of(family)): family for family in FORMS}.values()]


def kinds(calls: list[Call], item: str = "") -> dict[str, dict[str, list[str]]]:
    """What a model server tells of the tools' parameters."""
    return {name: dict(paths_of(values, item)) for name, values in calls}


def paths_of(value: Any, item: str, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """The types of values by their paths; of those within one only if lists have an item's key."""
    within = value.items() if isinstance(value, Mapping) else [(item, each) for each in value]
    for key, each in cast("Iterable[tuple[str, Any]]", within):
        yield f"{path}{key}", [kind_of(each)]
        if item and isinstance(each, dict | list):
            yield from paths_of(each, item, f"{path}{key}.")


def told(form: CallForm, calls: list[Call]) -> AnswerFormat:
    return AnswerFormat("learnt", calls=form, kinds=kinds(calls, form.item))


def values(calls: tuple[tuple[str, str], ...]) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@each_case("family", FORMS)
def test_golden_calls_are_read_in_one_piece_and_in_single_characters(family: str) -> None:
    turn, want = GOLDEN[family]["turn"], [tuple(call) for call in GOLDEN[family]["calls"]]
    format = told(form_of(family), want)
    for pieces in ([turn], [*turn]):
        made = parsed(pieces, format, tools=("get_weather", "now"))
        assert values(made.calls) == want
        assert made.ended == len(want)


@each_case("family", FORMS)
def test_a_form_crosses_the_wire(family: str) -> None:
    assert decoded(encoded(form_of(family))) == form_of(family)


TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "\n", " a\n", 'say "if"', "'", "\\", "\\n", "{x}", "[1]", "</", "<tool", "\U0001f600",
     "null", "31", "True", "```", "a=b, c", "]]"]
)  # fmt: skip
NUMBERS = st.integers() | st.sampled_from([2**63, -(2**63), 1e308, 5e-324, 0.1, -1.5])
SCALARS = st.none() | st.booleans() | NUMBERS
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,8}", fullmatch=True) | st.sampled_from(
    ["from", "if", "not", "None", "true", "a,b", "a:b", "{a", "a b", "a=b", 'a"b', "a(b", "a>b",
     "https://x/?y=1&z"]
)  # fmt: skip


def arguments_in(form: CallForm) -> st.SearchStrategy[dict[str, Any]]:
    ends = marks_of(form)
    bare = TEXTS.filter(lambda text: not any(mark in text for mark in ends))
    if ends:  # nor what may be the beginning of one, at its end
        bare = bare.filter(lambda text: not text.endswith(tuple("".join(ends))))
    scalars = st.booleans() | NUMBERS if form.item else SCALARS  # what is null is left out there
    if form.item:  # a list's values have one type
        lists = st.lists(bare, max_size=3) | st.lists(NUMBERS, max_size=3)
    else:
        lists = st.lists(scalars | bare, max_size=3)
    objects = st.dictionaries(KEYS, scalars | bare | lists, max_size=3)
    return st.dictionaries(KEYS, scalars | bare | lists | objects, max_size=4)


@cache
def conversations(family: str) -> st.SearchStrategy[tuple[list[Call], str, list[str]]]:
    """Strategies made in each example took half of the time."""
    form = form_of(family)
    arguments, most = arguments_in(form), 1 if form.one else 3
    # A name has the same parameters in all calls of it.
    names = st.lists(st.sampled_from(TOOLS), min_size=1, max_size=most, unique=True)

    @st.composite
    def conversation(draw: st.DrawFn) -> tuple[list[Call], str, list[str]]:
        calls: list[Call] = [(name, draw(arguments)) for name in draw(names)]
        text = written(form, calls)
        if form.mark and draw(st.booleans()):
            text = f"Let me see: {{1}} < 2. {text.lstrip()}"
        places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
        cuts = [text[i:j] for i, j in zip([0, *places], [*places, None], strict=True)]
        return calls, text, cuts

    return conversation()


def check(form: CallForm, calls: list[Call], text: str, cuts: list[str]) -> None:
    whole = parsed([text], told(form, calls))
    assert values(whole.calls) == [(name, dict(each)) for name, each in calls]
    assert whole.content in ("", "Let me see: {1} < 2.")
    for pieces in (cuts, [*text]):
        assert parsed(pieces, told(form, calls)) == whole


@settings(deadline=None)
@given(data=st.data(), family=st.sampled_from(DISTINCT))
def test_random_calls_are_read_back(family: str, data: st.DataObject) -> None:
    form = form_of(family)
    check(form, *data.draw(conversations(family)))


@pytest.mark.nightly
@pytest.mark.parametrize("family", DISTINCT)
def test_two_thousand_random_calls_are_read_back(family: str) -> None:
    form = form_of(family)

    @settings(max_examples=2000, deadline=None)
    @given(conversations(family))
    def each(conversation: tuple[list[Call], str, list[str]]) -> None:
        check(form, *conversation)

    each()


def test_a_long_text_between_marks_is_streamed_as_it_comes() -> None:
    form = form_of("qwen3-coder")
    calls: list[Call] = [("f", {"code": "word " * 100})]
    text = written(form, calls)
    seen = parsed([text[: len(text) // 2]], told(form, calls))
    assert len(seen.calls[0][1]) > len(text) // 2 - 100


@each_case("text", [
    "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "Write <tool_call>\n<function=f and so on.",
    "<tool_call>",
])  # fmt: skip
def test_what_only_looks_like_a_call_of_pairs_is_content(text: str) -> None:
    for pieces in ([text], [*text]):
        made = parsed(pieces, told(form_of("qwen3-coder"), []))
        assert (made.content, made.calls) == (text, ())


@each_case("text, types, value", [
    ("31", ["string"], "31"),
    ("31", ["number"], 31),
    (" 31\n", ["number"], 31),
    ("True", ["boolean"], True),
    ("None", ["null", "string"], None),
    ("null", ["string"], "null"),
    ("['a', 1.5]", ["array"], ["a", 1.5]),
    ('{"a": NaN}', ["object", "string"], '{"a": NaN}'),
    ("three", ["number"], "three"),
    ("7", None, 7),
    ("seven", None, "seven"),
])  # fmt: skip
def test_bare_values_have_the_type_that_the_schema_gives(
    text: str, types: list[str] | None, value: Any
) -> None:
    format = AnswerFormat(
        "learnt", calls=form_of("qwen3-coder"), kinds={"f": {"a": types} if types else {}}
    )
    call = (
        f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    )
    assert values(parsed([call], format).calls) == [("f", {"a": value})]


@each_case("text", ["1, b=2", "[1], c='d'", "e1)(", "a, *b", "'a', **{}"])
def test_what_would_be_more_than_one_value_to_python_is_a_text(text: str) -> None:
    form = form_of("qwen3-coder")
    calls: list[Call] = [("f", {"a": text})]
    format = AnswerFormat("learnt", calls=form)  # a value of any type
    for pieces in ([whole := written(form, calls)], [*whole]):
        assert values(parsed(pieces, format).calls) == calls


@each_case("family", [each for each in DISTINCT if form_of(each).arguments == "pairs"])
def test_a_key_that_the_tool_has_may_hold_what_ends_keys(family: str) -> None:
    form = form_of(family)
    mark = form.behind_key("string").split()[0]
    calls: list[Call] = [("f", {f"a{mark}b": "x", "a": 1, f"{mark}": "y"})]
    for pieces in ([whole := written(form, calls)], [*whole]):
        assert values(parsed(pieces, told(form, calls)).calls) == calls


WITHOUT_QUOTES = [each for each in DISTINCT
                  if form_of(each).arguments in ("pairs", "tags", "loose", "python")]  # fmt: skip
ODD = ("a,b", "a:b", "a:{b", "a:", "a::b", "}", "{", "a b", "a=b", "a = b", "a=", "a==b",
       'say "x"', "it's", "f(x", "a>b", "https://x.y/?z=1&w", "1", "a+")  # fmt: skip


@each_case("family", WITHOUT_QUOTES)
def test_the_keys_of_a_tool_may_have_any_text_in_them(family: str) -> None:
    form = form_of(family)
    calls: list[Call] = [("f", {key: n for n, key in enumerate(ODD)}), ("add", {"{": "x", "a": 1})]
    calls = calls[:1] if form.one else calls
    text = written(form, calls)
    check(form, calls, text, [text[at : at + 3] for at in range(0, len(text), 3)])


def test_a_key_that_no_tool_has_ends_at_the_colon_that_a_value_follows() -> None:
    form = form_of("gemma4")
    within = {"b,c": 1, "d:e": "x", "{f": [True], "https://g/?h": {"i:j:k": None}, "l": "m:1,n:2"}
    calls: list[Call] = [("f", {"a": within})]
    text = written(form, calls)
    check(form, calls, text, [text[at : at + 3] for at in range(0, len(text), 3)])


def test_a_text_without_its_quotes_may_have_a_colon_in_it() -> None:
    form = form_of("gemma4")
    said = f"{form.mark}call:f{{time:12:30,url:http://x/y,n:1}}{form.tail}"
    calls: list[Call] = [("f", {"time": "12:30", "url": "http://x/y", "n": 1})]
    for pieces in ([said], [*said]):
        assert values(parsed(pieces, told(form, calls)).calls) == calls


@each_case("family", WITHOUT_QUOTES)
def test_an_answer_that_is_cut_is_the_same_in_any_pieces(family: str) -> None:
    form = form_of(family)
    calls: list[Call] = [("f", {"a:b": "x, y", "c": {"d": [1, 2]}, "e(,=": True})]
    text = written(form, calls)
    for end in range(0, len(text), 5):
        said = text[:end]
        assert parsed([*said], told(form, calls)) == parsed([said], told(form, calls)), said


@each_case("text, arguments", [
    ("f(a b=1, c = 2)", {"a b": 1, "c": 2}),
    ("f(a.b=[1], c:d='x')", {"a.b": [1], "c:d": "x"}),
    ("f(a='x\ny', b=\"it\\'s\n\")", {"a": "x\ny", "b": "it's\n"}),
    ("f(a='''x\ny''')", {"a": "x\ny"}),
    ("f(a, b=1)", None),
    ("f(a == 1)", None),
])  # fmt: skip
def test_keys_and_line_ends_that_python_does_not_take_are_read(text: str, arguments: Any) -> None:
    form = form_of("lfm2")
    for pieces in ([said := f"{form.mark}[{text}]{form.end[1:]}"], [*said]):
        made = parsed(pieces, AnswerFormat("learnt", calls=form))
        assert values(made.calls) == ([] if arguments is None else [("f", arguments)])


SPACED = CallForm("pairs", mark="<c>", head=f"<c>{NAME}", tail="</c>", pair="- ", close=" ;\n",
                  colon={"": " :\t"})  # fmt: skip
IN_QUOTES = CallForm("pairs", mark="<c>", head=f"<c>{NAME}", tail="</c>", pair="<p=",
                     colon={"": ">"}, close="</p>", quoted=True)  # fmt: skip


@each_case("form", [SPACED, IN_QUOTES])
def test_forms_that_no_public_template_has_are_read_too(form: CallForm) -> None:
    calls: list[Call] = [("f", {"a b": 'say "x"  y', "b": 5, "c": "7", "d": [1, "e"], "f:>g": ""}),
                         ("add", {})]  # fmt: skip
    text = written(form, calls)
    check(form, calls, text, [text[at : at + 3] for at in range(0, len(text), 3)])


@each_case("said, types, value", [
    ("<item>1</item><item>b</item>", {}, [1, "b"]),
    ("<x>1</x>", {}, {"x": 1}),
    ("<item>1</item>", {"a": ["object"]}, {"item": 1}),
    ("<x>1</x>", {"a": ["array"], "a.item": ["string"]}, ["1"]),
    ("<x><item>1</item></x>", {"a.x.item": ["string"]}, {"x": ["1"]}),
    ("", {"a": ["array", "null"]}, []),
    ("", {"a": ["object"]}, {}),
    ("", {}, ""),
    ("<item></item>", {"a.item": ["array"]}, [[]]),
    ("<b", {"a": ["string"]}, "<b"),
])  # fmt: skip
def test_tags_within_a_tag_are_lists_and_objects(
    said: str, types: dict[str, list[str]], value: Any
) -> None:
    form, token = form_of("minimax-m3"), "]<]minimax[>["
    said = said if said == "<b" else said.replace("<", f"{token}<")
    call = f'\n{token}<invoke name="f">{token}<a>{said}{token}</a>{token}</invoke>'
    text = f"{token}<tool_call>{call}\n{token}</tool_call>"
    format = AnswerFormat("learnt", calls=form, kinds={"f": types})
    for pieces in ([text], [*text]):
        assert values(parsed(pieces, format).calls) == [("f", {"a": value})]


def test_kimis_ids_have_the_name_and_the_number_of_the_call() -> None:
    form = form_of("kimi-k2")
    calls: list[Call] = [("add", {}), ("f", {"a": 1})]
    ids: list[str] = []
    made = parsed([written(form, calls)], told(form, calls), ids=ids)
    assert values(made.calls) == calls
    assert ids == ["functions.add:0", "functions.f:1"]


def test_reasoning_between_other_marks_is_told_from_the_answer() -> None:
    marks = ("<|think|>", "<|end|><|begin|>assistant<|content|>")
    format = AnswerFormat(reasoning=ReasoningParser.THINK, thoughts=marks)
    for pieces in ([text := f"{marks[0]}Hm.{marks[1]}So."], [*text]):
        made = parsed(pieces, format)
        assert (made.reasoning, made.content) == ("Hm.", "So.")
