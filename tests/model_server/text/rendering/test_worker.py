"""A chat whose last message is continued ends behind that message's text, whatever the text."""

from __future__ import annotations

from functools import cache

import pytest

from model_server.text.chat_template import ChatTemplate
from sax.chat import ChatOptions, Image, Message
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
    made = ChatTemplate(source).with_images("*")
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
