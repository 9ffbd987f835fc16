"""Every dialect: what is a call, what only looks like one, and that it does not matter where the
text is cut."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sax.chat import AnswerFormat, ReasoningParser, ToolParser
from tests.each_case import each_case
from tests.sax.dialects.texts import Divided, parsed

OSLO = '{"city": "Oslo"}'
BAR, GAP = "\uff5c", "\u2581"


def token(words: str) -> str:
    return f"<{BAR}{words.replace(' ', GAP)}{BAR}>"


def of(tools: str, reasoning: str = "none", *, is_open: bool = False) -> AnswerFormat:
    return AnswerFormat(tools, reasoning, is_open)


HERMES = f'<tool_call>\n{{"name": "get_weather", "arguments": {OSLO}}}\n</tool_call>'
LLAMA = f'{{"name": "get_weather", "parameters": {OSLO}}}'
MISTRAL = f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {OSLO}}}]'
MISTRAL_NEW = f"[TOOL_CALLS]get_weather[ARGS]{OSLO}"
GEMMA = '[get_weather(city="Oslo")]'
V3 = f"{token('tool call begin')}function{token('tool sep')}get_weather\n```json\n{OSLO}\n```"
V3 = f"{token('tool calls begin')}{V3}{token('tool call end')}{token('tool calls end')}"
V31 = f"{token('tool call begin')}get_weather{token('tool sep')}{OSLO}{token('tool call end')}"
HARMONY = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + OSLO
ONE = (("get_weather", OSLO),)


@each_case("tools, text, content, calls", [
    ("hermes", HERMES, "", ONE),
    ("hermes", f"I look.\n\n{HERMES}\n{HERMES}\n", "I look.", ONE * 2),
    ("hermes", f"{HERMES} Done. ", "Done. ", ONE),
    ("hermes", HERMES.replace("arguments", "parameters"), "", ONE),
    ("hermes", f'<tool_call>{{"arguments": {OSLO}, "name": "get_weather"}}', "", ONE),
    ("hermes", HERMES.removesuffix("}\n</tool_call>"), "", ONE),
    ("hermes", HERMES[: HERMES.index("Oslo")], "", (("get_weather", '{"city": "'),)),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", (("f", "{}"),)),
    ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": 3}', "", (("f", "{}"),)),
    *[("hermes", f'<tool_call>{{"name": "f"{none}}}</tool_call> \n', "", (("f", "{}"),))
      for none in ("", ', "arguments": null', ', "arguments": ""')],
    ("hermes", f"Hm.\n\n{HERMES}\n{HERMES}Well.", "Hm.\n\nWell.", ONE * 2),
    ("hermes", f"Hm.{HERMES}\n\nWell. ", "Hm.\n\nWell. ", ONE),
    ("hermes", '<tool_call>{"arguments": {"q": "\\ud83d!"}, "name": "f"}</tool_call>', "",
     (("f", '{"q": "\ufffd!"}'),)),
    ("llama3", LLAMA, "", ONE),
    ("llama3", f"<|python_tag|>{LLAMA}; {LLAMA}", "", ONE * 2),
    ("llama3", f"\n{LLAMA}", "", ONE),
    ("llama3", LLAMA.replace("{", '{"type": "function", ', 1), "", ONE),
    ("llama3", f"Let me see <|python_tag|>{LLAMA}", "Let me see", ONE),
    ("mistral", MISTRAL, "", ONE),
    ("mistral", MISTRAL.replace("}}]", f"}}}}, {LLAMA}]"), "", ONE * 2),
    ("mistral", f"Well. {MISTRAL_NEW}{MISTRAL_NEW}", "Well.", ONE * 2),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{OSLO}", "", ONE),
    ("mistral", f"[TOOL_CALLS]get_weather{OSLO}", "", ONE),
    ("gemma", GEMMA, "", ONE),
    ("gemma", f"```tool_code\n{GEMMA}\n```", "", ONE),
    ("gemma", '```tool_code\nget_weather(city="Oslo")\n```', "", ONE),
    ("gemma", "[f(), add(a=1, b=[-2.5, True, null])]", "",
     (("f", "{}"), ("add", '{"a": 1, "b": [-2.5, true, null]}'))),
    *[("gemma", f'[f(q="{text}")]', "", (("f", f'{{"q": "{text}"}}'),)) for text in (
        "call me if it rains", "do not forget", "git log --oneline", "lambda", "1 + -2")],
    ("gemma", "[f(q='not \\' -- if')]", "", (("f", '{"q": "not \' -- if"}'),)),
    ("gemma", r'[f(q="a\/b\u00e9\n", n=1e400, m=-0.50)]', "",
     (("f", '{"q": "a/b\u00e9\\n", "n": 1e400, "m": -0.50}'),)),
    ("gemma", "[f(a={'k': 1, 'k': 2},\n q='\u2028', n=-7.0)]", "",
     (("f", '{"a": {"k": 2}, "q": "\u2028", "n": -7.0}'),)),
    ("gemma", r"[f(q='\ud83d\ude00', r='\ud83d')]", "",
     (("f", '{"q": "\U0001f600", "r": "\ufffd"}'),)),
    ("deepseek", V3, "", ONE),
    ("deepseek", f"Yes.{token('tool calls begin')}{V31}{V31}{token('tool calls end')}", "Yes.",
     ONE * 2),
    ("gpt_oss", HARMONY, "", ONE),
    ("gpt_oss", " to=functions.get_weather<|channel|>commentary json<|message|>" + OSLO, "",
     ONE),
    ("gpt_oss", "<|channel|>final<|message|>Hello", "Hello", ()),
])  # fmt: skip
def test_calls_are_read(
    tools: str, text: str, content: str, calls: tuple[tuple[str, str], ...]
) -> None:
    format = of(tools, "gpt_oss" if tools == "gpt_oss" else "none")
    assert parsed([text], format) == Divided(content, "", calls, len(calls))
    assert parsed([*text], format) == Divided(content, "", calls, len(calls))


@each_case(
    "tools, text",
    [
        ("gemma", "[f(n=-1j)]"),
        ("gemma", "[f(n=-[1])]"),
        ("hermes", "Write <tool_call> and </tool_call> around it."),
        ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
        ("hermes", '  <tool_call>\n{"na'),
        ("hermes", '<tool_call>{"name": "f", "arguments": 3}</tool_call>'),
        ("llama3", '{"name": "Bob", "age": 3}'),
        ("llama3", '{"name": "other", "parameters": {}}'),
        ("llama3", '<|python_tag|>wolfram.call(query="2+2")'),
        ("llama3", f"It is {LLAMA}"),
        ("llama3", '{"name": '),
        ("mistral", "[TOOL_CALLS] none"),
        ("mistral", "[TOOL_CALLS][1, 2]"),
        ("mistral", "[TOOL_CALLS]other[ARGS]{}"),
        ("mistral", "[1, 2, 3]"),
        ("gemma", "[1, 2] and [f]"),
        ("gemma", " ```tool_code\nprint(1)\n```"),
        ("gemma", "[f(x)]"),
        ("gemma", "[f(a=b())]"),
        ("gemma", f"[f(a={'[' * 900}{']' * 900})]"),
        ("gemma", f"[f(a={'-' * 9000}1)]"),
        ("deepseek", f"{token('tool calls begin')} nothing"),
        ("deepseek", token("tool calls begin") + V31.replace("get_weather", "other")),
        ("gpt_oss", "Plain text, to=functions.f or not"),
        ("gpt_oss", " to=nobody"),
        ("none", HERMES),
    ],
)
def test_what_only_looks_like_a_call_is_content_to_the_last_character(
    tools: str, text: str
) -> None:
    assert parsed([text], of(tools)) == Divided(text, "", (), 0)
    assert parsed([*text], of(tools)) == Divided(text, "", (), 0)


@each_case(
    "text, is_open, reasoning, content",
    [
        ("<think>\nWhy not?\n</think>\n\nYes.", False, "Why not?", "Yes."),
        ("Why not?\n</think>\n\nYes.", True, "Why not?", "Yes."),
        ("Why not", True, "Why not", ""),
        ("Say <think> and </think>.", False, "", "Say <think> and </think>."),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        (" Yes.", False, "", " Yes."),
    ],
)
def test_reasoning_is_told_from_content(
    text: str, is_open: bool, reasoning: str, content: str
) -> None:
    format = of("none", "think", is_open=is_open)
    assert parsed([text], format) == Divided(content, reasoning, (), 0)
    assert parsed([*text], format) == Divided(content, reasoning, (), 0)


def test_a_call_may_follow_reasoning_that_speaks_of_one() -> None:
    text = f"<think>Shall I {HERMES}?</think>{HERMES}"
    assert parsed([text], of("hermes", "think")) == Divided("", f"Shall I {HERMES}?", ONE, 1)


def test_channels_are_reasoning_content_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>Weather...<|end|><|start|>assistant<|channel|>commentary"
        f"<|message|>One moment. <|end|><|start|>assistant{HARMONY}"
    )
    divided = parsed([text], of("gpt_oss", "gpt_oss"))
    assert divided == Divided("One moment.", "Weather...", ONE, 1)


def test_only_the_first_call_is_given_where_calls_are_not_parallel() -> None:
    assert parsed([f"{HERMES}\n{HERMES}"], of("hermes"), parallel=False).calls == ONE


FRAGMENTS = {
    "hermes": [HERMES, "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "<tool"],
    "llama3": [LLAMA, "<|python_tag|>", ";", '{"name": "f", "parameters": {"a": "}"', "{"],
    "mistral": [MISTRAL, MISTRAL_NEW, "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "f", ","],
    "gemma": [GEMMA, "```tool_code\n", "```", "[", "f(a='\\'", "add(a=1)", ",", "]"],
    "deepseek": [V3, V31, token("tool calls begin"), token("tool call begin"), "function", "f",
                 token("tool sep"), "```json\n", token("tool calls end")],
    "gpt_oss": [HARMONY, "<|channel|>", "analysis", "<|message|>", "<|end|>", "<|start|>",
                "assistant", " to=functions.f"],
    "none": ["<tool_call>"],
}  # fmt: skip
ANYWHERE = [
    "<think>",
    "</think>",
    " ",
    "\n",
    OSLO,
    '{"a": "\\"}"}',
    "Hello ",
    "caf\u00e9",
    '"',
    "}",
]


@st.composite
def cut_texts(draw: st.DrawFn, tools: str) -> tuple[list[str], str]:
    fragment = st.one_of(
        st.sampled_from(FRAGMENTS[tools]), st.sampled_from(ANYWHERE), st.text(max_size=4)
    )
    text = "".join(draw(st.lists(fragment, max_size=10)))
    random = draw(st.randoms(use_true_random=False))
    places = sorted(random.sample(range(len(text) + 1), random.randint(0, len(text))))
    cuts = [text[i:j] for i, j in zip([0, *places], [*places, None], strict=True)]
    return cuts, text


@pytest.mark.extended
@pytest.mark.parametrize("tools", FRAGMENTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), reasoning=st.sampled_from(["none", "think", "open"]))
def test_where_the_text_is_cut_does_not_matter(
    tools: str, reasoning: str, data: st.DataObject
) -> None:
    kind = ReasoningParser.NONE if reasoning == "none" else ReasoningParser.THINK
    if tools == ToolParser.GPT_OSS:
        kind = ReasoningParser.GPT_OSS
    format = of(tools, kind, is_open=reasoning == "open")
    cuts, text = data.draw(cut_texts(tools))
    whole = parsed([text], format)
    assert parsed(cuts, format) == whole
    assert whole.ended == len(whole.calls)
    if not whole.calls and kind is ReasoningParser.NONE:
        assert whole.content == text


@pytest.mark.extended
@each_case("tools", [tools for tools in FRAGMENTS if tools != "none"])
def test_a_hostile_answer_is_read_in_linear_time(tools: str) -> None:
    for fragment in FRAGMENTS[tools]:
        text = fragment * (200_000 // len(fragment))
        began = time.process_time()
        parsed([text[at : at + 1000] for at in range(0, len(text), 1000)], of(tools))
        assert time.process_time() - began < 5


def test_arguments_are_streamed_as_they_come() -> None:
    arguments = json.dumps({"text": "word " * 100})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    half = len(text) // 2
    seen = parsed([text[:half]], of("hermes"))
    assert len(seen.calls[0][1]) > half - 60
