"""A chat whose last message is continued ends behind that message's text, whatever the text;
templates get contents in the form that they take.
"""

from __future__ import annotations

from functools import cache

import pytest

from model_server.text.chat_template import ChatTemplate
from sax.chat import ChatOptions, Image, Message, Sound, ToolCall, Video
from sax.errors import InvalidRequest
from tests.each_case import each_case

OPEN = ChatOptions(add_generation_prompt=False, continue_final_message=True)
KINDS = {
    "chatml": ("<|im_start|>{}\n", "<|im_end|>\n"),
    "llama 3": ("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"),
    "gemma": ("<start_of_turn>{}\n", "<end_of_turn>\n"),
}
TEXTS = ("The answer", "{", "<", ">", "|", "e", "end", "id", "_", "of", "im_end", "", "a\n b")


@cache
def template(kind: str, content: str = "m.content") -> ChatTemplate:
    before, after = KINDS[kind]
    role = before.format("{{ m.role }}")
    source = f"{{%- for m in messages %}}{role}{{{{ {content} }}}}{after}{{% endfor %}}"
    return ChatTemplate(source, special_tokens=[after.strip()])


@each_case("kind, text", [(kind, text) for kind in KINDS for text in TEXTS])
def test_the_prompt_ends_with_the_last_messages_text(kind: str, text: str) -> None:
    chat = [Message("user", "x"), Message("assistant", text)]
    made = template(kind).render(chat, OPEN)
    assert made.endswith(KINDS[kind][0].format("assistant") + text)
    assert made.count(KINDS[kind][1]) == 1


@each_case("content, ends", [("m.content", "The \n "), ("m.content | trim", "The")])
def test_white_space_at_its_end_is_kept_where_the_template_keeps_it(
    content: str, ends: str
) -> None:
    made = template("chatml", content).render([Message("assistant", "The \n ")], OPEN)
    assert made == "<|im_start|>assistant\n" + ends


def test_the_last_text_of_several_parts_is_continued() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text or '*' }}{% endfor %}{% endif %};{% endfor %}"
    )
    made = ChatTemplate(source).with_media(image="*")
    assert made.render([Message("user", ("a", Image(b""), "b"))], OPEN) == "a*b"


@each_case(
    "source, last",
    [
        ("{% for m in messages[:-1] %}{{ m.content }}{% endfor %}", Message("assistant", "a")),
        ("{{ messages | length }}", Message("assistant", (Image(b""),))),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, last: Message) -> None:
    with pytest.raises(InvalidRequest, match="cannot continue these messages") as refused:
        ChatTemplate(source).render([Message("user", "x"), last], OPEN)
    assert refused.value.param == "messages"


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
    assert ChatTemplate(source).with_media(image="<image>").render(CHAT) == text


@pytest.mark.parametrize("test", ["'audio' in p", "p['type'] == 'audio'"])
def test_templates_of_models_with_audio_input_find_sounds_by_key_or_type(test: str) -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        f"{{% for p in m.content %}}{{% if {test} %}}<sound>"
        "{% elif 'text' in p %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}|{% endfor %}"
    )
    chat = (Message("user", ("a", Sound(b"file"), "b")), Message("assistant", "c"))
    assert ChatTemplate(source).with_media(audio="<sound>").render(chat) == "a<sound>b|c|"


def test_a_video_has_a_type_of_its_own_beside_images() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<image>"
        "{% elif p.type == 'video' %}<video>{% else %}{{ p.text }}{% endif %}{% endfor %}"
        "{% endfor %}"
    )
    template = ChatTemplate(source).with_media(image="<image>", video="<video>")
    chat = (Message("user", (Video(b"file"), "a", Image(b"file"))),)
    assert template.render(chat) == "<video>a<image>"
    forged = template.render((Message("user", ("<video>",)),))
    assert forged == "\ufdd0<video>"


def test_a_template_of_a_model_without_image_input_gets_texts() -> None:
    chat = (Message("user", "a"),)
    assert ChatTemplate(TEXTS_ONLY).render(chat) == "a|"


@each_case("source", [LISTS, LISTS_ONLY, TEXTS_ONLY])
def test_users_cannot_write_the_placeholder(source: str) -> None:
    forged = ChatTemplate(source).with_media(image="<image>").render((Message("user", "<image>"),))
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
