"""Templates get contents in the form that they take, tried out with an image."""

import pytest

from model_server.text.chat_template import ChatTemplate
from sax.chat import Image, Message, Sound, ToolCall
from tests.each_case import each_case

LISTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}"
    "{% endif %}{% endfor %}{% endif %}|{% endfor %}"
)
LISTS_ONLY = (
    "{% for m in messages %}{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}"
    "<image>{% endfor %}{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ p['text'] }}{% endfor %}|{% endfor %}"
)
TEXTS_ONLY = "{% for m in messages %}{{ m['content'] }}|{% endfor %}"
PREFERS_TEXT = "{% for m in messages %}{{ m['content'] + '|' }}{% endfor %}"  # fails on a list
IMAGE = Image(b"file")
CHAT = (Message("user", ("a", IMAGE, "b")), Message("assistant", "c"))


@each_case(
    "source, text",
    [
        (LISTS, "a<image>b|c|"),
        (LISTS_ONLY, "<image>ab|c|"),
        (TEXTS_ONLY, "a\n<image>\nb|c|"),
        (PREFERS_TEXT, "a\n<image>\nb|c|"),
    ],
)
def test_every_kind_of_template_writes_texts_and_images(source: str, text: str) -> None:
    assert ChatTemplate(source).with_images("<image>").render(CHAT) == text


@pytest.mark.parametrize("test", ["'audio' in p", "p['type'] == 'audio'"])
def test_templates_of_models_with_audio_input_find_sounds_by_key_or_type(test: str) -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        f"{{% for p in m.content %}}{{% if {test} %}}<sound>"
        "{% elif 'text' in p %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}|{% endfor %}"
    )
    chat = (Message("user", ("a", Sound(b"file"), "b")), Message("assistant", "c"))
    assert ChatTemplate(source).with_images("<sound>").render(chat) == "a<sound>b|c|"


def test_a_template_of_a_model_without_image_input_gets_texts() -> None:
    chat = (Message("user", "a"),)
    assert ChatTemplate(TEXTS_ONLY).render(chat) == "a|"


@each_case("source", [LISTS, LISTS_ONLY, TEXTS_ONLY])
def test_users_cannot_write_the_placeholder(source: str) -> None:
    forged = ChatTemplate(source).with_images("<image>").render((Message("user", "<image>"),))
    assert "<image>" in forged
    assert "\ufdd0<image>" in forged


CALLS = "{% for c in m.tool_calls or [] %}({{ c.function.name }}){% endfor %}"
HEAD = "{% for m in messages %}<{{ m.role }}>"


@each_case(
    "body",
    [
        "{{ '\n' + m.content }}" + CALLS,  # Qwen3
        "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
        "{% else %}{{ m.content }}{% endif %}" + CALLS,  # Qwen3 too
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ part.text }}{% endfor %}{% endif %}" + CALLS,  # Qwen3-VL
        "{{ m.content }}" + CALLS,
        "{{ m.content | trim }}" + CALLS,
        "{% if m.content is none %}"
        + CALLS
        + "{% else %}{{ m.content }}{% endif %}",  # DeepSeek V3
        "{% if m.tool_calls and m.content is not none %}{{ raise_exception('both') }}{% endif %}"
        "{{ m.content or '' }}" + CALLS,
    ],
)
def test_a_message_that_only_calls_has_the_content_that_the_template_takes(body: str) -> None:
    call = ToolCall("123456789", "f", "{}")
    chat = [
        Message("user", "x"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "42", name="f", tool_call_id="123456789"),
        Message("assistant", "It is 42."),
    ]
    text = ChatTemplate(HEAD + body + "{% endfor %}").render(chat)
    assert "(f)" in text
    assert "None" not in text
    assert text.endswith("It is 42.")
