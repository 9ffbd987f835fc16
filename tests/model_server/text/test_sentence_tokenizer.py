"""The texts that a chat template writes around a query and a document."""

from __future__ import annotations

import pytest

from model_server.text.chat_template import ChatTemplate
from model_server.text.sentence_tokenizer import QWEN3, PairTexts, pair_texts
from sax.errors import CheckpointError

ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}!"


def test_the_texts_are_what_the_template_writes_around_the_pair() -> None:
    wanted = PairTexts("<system>Rank!<query>", "<document>", "!")
    assert pair_texts(ChatTemplate(ROLES), "Rank!", "llama") == wanted
    assert pair_texts(ChatTemplate(ROLES), "", "llama").before == "<query>"


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
        "{{ raise_exception('no such role') }}",
        "{% for m in messages | reverse %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
    ],
)
def test_a_template_without_room_for_a_pair_is_refused_but_for_qwen3(source: str) -> None:
    template = ChatTemplate(source)
    assert pair_texts(template, "", "qwen3") == QWEN3
    with pytest.raises(CheckpointError, match="a message of the role query"):
        pair_texts(template, "", "llama")
    with pytest.raises(CheckpointError, match="CHAT_TEMPLATE"):
        pair_texts(None, "", "llama")
