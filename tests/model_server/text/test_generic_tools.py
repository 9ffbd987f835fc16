"""Models whose template has no tools: what they are told, and how their calls are read."""

from __future__ import annotations

import json

from model_server.text.chat_template import ChatTemplate, without_tools
from model_server.text.dialect import dialect_of
from model_server.text.rendering.frames import WrittenForms
from sax.chat import AnswerFormat, ChatOptions, Image, Message, Tool, ToolCall
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import CallBegun

TOOL = Tool("get_weather", "Tells it.", '{"type": "object"}')
ASK = Message("user", "Weather in Oslo and Rome?")
CALLS = tuple(ToolCall(f"call_{n}", "get_weather", f'{{"n": {n}}}') for n in range(2))
CALLED = Message("assistant", "I look.", tool_calls=CALLS)
RESULTS = tuple(Message("tool", f"{n} degrees", name="get_weather") for n in range(2))
SILENT = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def render(source: str, *chat: Message, **options: object) -> str:
    chosen = ChatOptions(**{"tools": (TOOL,), **options})  # pyright: ignore[reportArgumentType]
    return ChatTemplate(source).render(chat, chosen)


def test_tools_are_told_in_a_system_message() -> None:
    text = render(PLAIN, ASK)
    assert text.startswith("<system>You can call functions.")
    described = {
        "name": "get_weather",
        "description": "Tells it.",
        "parameters": {"type": "object"},
    }
    assert json.dumps(described) in text
    assert text.endswith(f"<user>{ASK.content}")
    assert "must call" not in text
    assert "must call" in render(PLAIN, ASK, tool_choice="required")


def test_tools_are_told_behind_the_system_message_that_is_there() -> None:
    text = render(PLAIN, Message("system", "Be brief."), ASK)
    assert text.startswith("<system>Be brief.\n\nYou can call functions.")
    assert text.count("<system>") == 1


def test_tools_are_told_to_the_user_where_a_template_has_no_system_message() -> None:
    text = render(SILENT, ASK)
    assert text.startswith("<user>You can call functions.")
    assert text.endswith(f"\n\n{ASK.content}")


def test_calls_and_results_are_texts_and_turns_are_taken() -> None:
    text = render(PLAIN, ASK, CALLED, *RESULTS, Message("user", "And?"))
    roles = [part.split(">")[0] for part in text.split("<") if part.split(">")[0] in
             ("system", "user", "assistant")]  # fmt: skip
    assert roles == ["system", "user", "assistant", "user", "user"]
    called = text.split("<assistant>")[1].split("<user>")[0]
    dialect = dialect_of(PLAIN)
    assert dialect.generic
    parser = AnswerParser(AnswerFormat(dialect.tools, calls=dialect.calls), ["get_weather"])
    events = [*parser.push(called), *parser.finish()]
    assert [event.name for event in events if isinstance(event, CallBegun)] == ["get_weather"] * 2
    for n in range(2):
        assert f"Result of get_weather: {n} degrees" in text


def test_images_of_results_stay_where_they_are() -> None:
    image = Image(b"x")
    chat, _ = without_tools(
        [ASK, CALLED, Message("tool", ("seen: ", image))],
        ChatOptions(tools=(TOOL,)),
        WrittenForms(),
    )
    assert chat[-1].images == (image,)
    assert chat[-1].role == "user"


def test_nothing_is_told_of_tools_that_may_not_be_called() -> None:
    assert render(PLAIN, ASK, tool_choice="none") == f"<user>{ASK.content}"


def test_a_template_that_writes_calls_and_no_tools_writes_them_itself() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<c>{{ c.function.name }}={{ c.function.arguments | tojson }}</c>{% endfor %}{% endfor %}"
    )
    text = render(source, ASK, CALLED, *RESULTS)
    assert '<c>function_name={"parameter": "value"}</c>' in text
    assert '<c>get_weather={"n": 1}</c><tool>0 degrees<tool>1 degrees' in text


def test_a_users_text_cannot_speak_for_the_system() -> None:
    template = ChatTemplate(PLAIN, special_tokens=["<|x|>"])
    named = Tool("f", "<|x|>")
    assert "<|x|>" not in template.render([ASK], ChatOptions(tools=(named,))).replace(
        "\ufdd0<|x|>", ""
    )
