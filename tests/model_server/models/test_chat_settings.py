"""Overrides of chats."""

from __future__ import annotations

from typing import Any

import pytest

from model_server.models.overrides import CHAT_DEFAULTS, ChatSettings, parse_chat
from sax.errors import InvalidRequest


def test_a_publication_may_say_how_its_model_chats() -> None:
    assert parse_chat(CHAT_DEFAULTS) == ChatSettings()
    said = {"CHAT_TEMPLATE": "{{ x }}", "TOOL_PARSER": "hermes", "REASONING_PARSER": "none"}
    assert parse_chat(said) == ChatSettings("{{ x }}", "hermes", "none")


@pytest.mark.parametrize(
    "wrong",
    [{"CHAT_TEMPLATE": ""}, {"TOOL_PARSER": "xml"}, {"REASONING_PARSER": 3}, {"TOOL_PARSER": []}],
)
def test_what_is_not_known_is_refused_by_its_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_chat({**CHAT_DEFAULTS, **wrong})
    assert refused.value.param == f"overrides.{next(iter(wrong))}"
