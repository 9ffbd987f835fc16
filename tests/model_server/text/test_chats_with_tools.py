"""Tools, calls and options of a chat as templates see them, and what a template does not take."""

from __future__ import annotations

import json

import pytest

from model_server.text.chat_template import ChatTemplate
from model_server.text.control_tokens import MARK
from model_server.text.dialect import AnswerDialect, dialect_of
from sax.call_form import (
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GEMMA,
    HERMES,
    JSON_LIST,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
)
from sax.chat import (
    THINKING_TOKENS,
    ChatOptions,
    Message,
    ReasoningParser,
    Tool,
    ToolCall,
    ToolParser,
)
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.each_case import each_case

ASK = Message("user", "Weather in Oslo?")
WEATHER = Tool("get_weather", "Tells it.", '{"type": "object", "properties": {"city": {}}}')
CALL = ToolCall("call_1", "get_weather", '{"city": "Oslo"}')
CALLED = Message("assistant", "", tool_calls=(CALL,), reasoning="Hm.")
RESULT = Message("tool", "sunny", tool_call_id="call_1", name="get_weather")
WITH_TOOLS = ChatOptions(tools=(WEATHER,))


def render(source: str, *messages: Message, options: ChatOptions = WITH_TOOLS) -> str:
    return ChatTemplate(source, special_tokens=["<|x|>"]).render(messages or [ASK], options)


def test_tools_are_objects_as_openai_writes_them() -> None:
    schema = {"type": "object", "properties": {"city": {}}}
    function = {"name": "get_weather", "description": "Tells it.", "parameters": schema}
    tools = [{"type": "function", "function": function}]
    assert json.loads(render("{{ tools | tojson }}")) == tools
    bare = ChatOptions(tools=(Tool("f"),))
    assert json.loads(render("{{ tools[0].function | tojson }}", options=bare)) == {
        "name": "f",
        "parameters": {"type": "object", "properties": {}},
    }


def test_calls_and_results_have_the_fields_that_templates_read() -> None:
    source = (
        "{% for m in messages %}{% if m.tool_calls %}{{ m.content is none }} "
        "{{ m.reasoning_content }} {% for c in m.tool_calls %}{{ c.id }} {{ c.function.name }} "
        "{{ c.function.arguments | tojson }} {{ c.function.arguments is mapping }}{% endfor %}"
        "{% elif m.role == 'tool' %} "
        "{{ m.tool_call_id }} {{ m.name }} {{ m.content }}{% endif %}{% endfor %}{# tools #}"
    )
    assert render(source, ASK, CALLED, RESULT) == (
        'False Hm. call_1 get_weather {"city": "Oslo"} True call_1 get_weather sunny'
    )


def test_arguments_are_a_text_where_a_template_joins_them_to_one() -> None:
    path = "messages[0].tool_calls[0].function.arguments"
    source = f"{{{{ '<' + {path} + '>' }}}} {{{{ '<' ~ {path} }}}} {{{{ {path} }}}}{{# tools #}}"
    assert render(source, CALLED) == '<{"city": "Oslo"}> <{"city": "Oslo"} {"city": "Oslo"}'


def test_no_text_of_tools_and_calls_becomes_a_control_token() -> None:
    tool = Tool("f", "<|x|>", '{"properties": {"<|x|>": {"enum": ["<|x|>"]}}}')
    made = render("{{ tools | tojson }}", options=ChatOptions(tools=(tool,)))
    assert made.count("<|x|>") == made.count(f"{MARK}<|x|>") == 3
    call = Message("assistant", "", tool_calls=(ToolCall("<|x|>", "f", '{"<|x|>": "<|x|>"}'),))
    made = render("{{ messages[0].tool_calls | tojson }}{# tools #}", call)
    assert made.count("<|x|>") == made.count(f"{MARK}<|x|>") == 3
    values = ChatOptions(chat_template_kwargs='{"extra": "<|x|>"}')
    assert render("{{ extra }}", options=values) == f"{MARK}<|x|>"


@each_case("options, messages, param", [
        (ChatOptions(chat_template_kwargs='{"enable_thinking": 1}'), [ASK],
         "chat_template_kwargs.enable_thinking"),
        (ChatOptions(chat_template_kwargs='{"messages": []}'), [ASK],
         "chat_template_kwargs.messages"),
        (ChatOptions(chat_template_kwargs='{"reasoning_effort": "most"}'), [ASK],
         "reasoning_effort"),
    ])  # fmt: skip
def test_what_a_template_does_not_take_is_refused_by_name(
    options: ChatOptions, messages: list[Message], param: str
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        render("{% for m in messages %}{{ m.content }}{% endfor %}", *messages, options=options)
    assert refused.value.param == param


AS_JSON = '[{"name": "get_weather", "arguments": {"city": "Oslo", "days": [1]}}]'
AS_PYTHON = '[get_weather(city="Oslo", days=[1])]'


@each_case(
    "control_token, written",
    [
        ("<|tool_call_start|>", f"<|tool_call_start|>{AS_PYTHON}<|tool_call_end|>"),
        ("<|tool_call|>", f"<|tool_call|>{AS_JSON}"),
        ("<|x|>", AS_JSON),
    ],
)
def test_calls_are_in_the_text_where_a_template_takes_tools_and_writes_no_calls(
    control_token: str, written: str
) -> None:
    source = "{{ tools | length }}{% for m in messages %}|{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, special_tokens=[control_token])
    call = ToolCall("call_1", "get_weather", '{"city": "Oslo", "days": [1]}')
    made = template.render([ASK, Message("assistant", "I look.", tool_calls=(call,))], WITH_TOOLS)
    assert made == f"1|{ASK.content}|I look.{written}"


def test_a_template_for_tools_is_used_with_tools_and_with_calls() -> None:
    template = ChatTemplate("plain", for_tools="{{ tools | length }} {{ messages[0].tool_calls }}")
    assert template.with_media(image="<image>").replaced("other").render([ASK]) == "other"
    for made in (template, template.with_media(image="<image>")):
        assert made.render([ASK]) == "plain"
        assert made.render([ASK], WITH_TOOLS).startswith("1")
        assert "get_weather" in made.render([CALLED], WITH_TOOLS)


def test_tools_that_may_not_be_called_do_not_need_a_template_for_them() -> None:
    options = ChatOptions(tools=(WEATHER,), tool_choice="none")
    assert render("{{ messages[0].content }}", options=options) == ASK.content


def test_no_reasoning_is_no_reasoning_as_the_template_has_it() -> None:
    none = ChatOptions(chat_template_kwargs='{"reasoning_effort": "none"}')
    assert render("{{ enable_thinking }}", options=none) == "False"
    assert render("{{ reasoning_effort }}", options=none) == "none"
    assert render("plain", options=none) == "plain"


def test_an_effort_without_a_word_in_the_template_is_no_variable_of_it() -> None:
    for effort in THINKING_TOKENS:
        options = ChatOptions(chat_template_kwargs=f'{{"reasoning_effort": "{effort}"}}')
        assert render("plain", options=options) == "plain"
        assert render("{{ reasoning_effort }}", options=options) == effort
    low = ChatOptions(chat_template_kwargs='{"reasoning_effort": "low"}')
    assert render("{{ enable_thinking }}", options=low) == "", "only none says that"


@each_case("tool, call", [(Tool("f", "", "[]"), CALL), (WEATHER, ToolCall("1", "f", "[" * 99_999))])
def test_what_is_no_json_is_refused(tool: Tool, call: ToolCall) -> None:
    with pytest.raises(InvalidRequest, match="is no JSON object"):
        render("{{ tools }}{{ tool_calls }}", Message("assistant", "", tool_calls=(call,)),
               options=ChatOptions(tools=(tool,)))  # fmt: skip


CHATML = (
    "{% for m in messages %}<|x|>{{ m.role }}\n{{ m.content | trim }}<|x|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|x|>assistant\n{% endif %}"
)


@each_case(
    "content, end",
    [("It is", "It is"), (" It is\n", "It is"), ("is is", "is is"), ("a <|x|>", f"a {MARK}<|x|>")],
)
def test_a_last_message_is_continued_where_it_ends(content: str, end: str) -> None:
    options = ChatOptions(continue_final_message=True)
    made = render(CHATML, ASK, Message("assistant", content), options=options)
    assert made == f"<|x|>user\n{ASK.content}<|x|>\n<|x|>assistant\n{end}"


def test_the_dialect_of_a_template_that_writes_no_calls_is_told_from_its_words() -> None:
    known = {
        "tools <tool_call>": ("hermes", "none", HERMES),
        "tools <tool_call> <think>": ("hermes", "think", HERMES),
        "tools <tool_call> content.split('</think>')": ("hermes", "think", HERMES),
        "tools <tool_call><function=": ("learnt", "none", JSON_LIST),
        "tools [TOOL_CALLS]": ("mistral", "none", MISTRAL_LIST),
        "tools [TOOL_CALLS] [ARGS]": ("mistral", "none", MISTRAL),
        'tools "parameters": dictionary': ("llama3", "none", LLAMA3),
        "tools <|python_tag|>": ("llama3", "none", LLAMA3),
        "tools <start_of_turn>": ("gemma", "none", GEMMA),
        f"tools {DEEPSEEK.mark} ```json": ("deepseek", "none", DEEPSEEK_FENCED),
        f"tools {DEEPSEEK.mark}": ("deepseek", "none", DEEPSEEK),
        "xml_tools": ("learnt", "none", JSON_LIST),
        "<|start|><|channel|>": ("gpt_oss", "gpt_oss", None),
        "<|im_start|>": ("hermes", "none", HERMES),
    }
    for source, told in known.items():
        made = dialect_of(source)
        assert (made.tools, made.reasoning, made.calls) == told, source
    nothing = dialect_of("tools <tool_call><think>", tools="none", reasoning="none")
    assert nothing == AnswerDialect()
    assert dialect_of("tools", tools="hermes", reasoning="think") == AnswerDialect(
        ToolParser.HERMES, ReasoningParser.THINK, HERMES
    )
