"""Messages become text by the model's template; other prompts stay as they are."""

import asyncio
from dataclasses import replace

import pytest

from model_server.serving.chats.rendered_chat import Prompt, RenderedChat, rendered
from sax.errors import InvalidRequest
from sax.types import Message, ModelSpec
from tests.model_server.fake_model import FakeModels

SPEC = ModelSpec(model_id="/sax/test/fake", model_path="fake", checkpoint="None", replicas=1)
LOADED = FakeModels()(SPEC, lambda progress: None)
CHAT = (Message("user", "hi"),)


@pytest.mark.parametrize("prompt", ["", "hi", (), (1, 2)])
def test_text_and_ids_stay_as_they_are(prompt: Prompt) -> None:
    assert asyncio.run(rendered(prompt, LOADED)) is prompt


def test_messages_become_the_text_of_the_template() -> None:
    assert asyncio.run(rendered(CHAT, LOADED)) == RenderedChat("user: hi\nassistant: ")


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        asyncio.run(rendered(CHAT, replace(LOADED, chat_template=None)))
    assert caught.value.param == "messages"
