"""Messages become text by the model's template; other prompts stay as they are."""

from dataclasses import replace

import pytest

from model_server.serving.chats.rendered_chat import RenderedChat, rendered
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import Image, Message, ModelSpec, Sound
from tests.model_server.fake_image_input import RECIPE, seeing
from tests.model_server.fake_model import FakeModels

SPEC = ModelSpec(model_id="/sax/test/fake", model_path="fake", checkpoint="None", replicas=1)
LOADED = FakeModels()(SPEC, lambda progress: None)
CHAT = (Message("user", "hi"),)


async def test_text_and_ids_stay_as_they_are() -> None:
    for prompt in ("", "hi", (), (1, 2)):
        assert await rendered(prompt, LOADED) is prompt


async def test_messages_become_the_text_of_the_template() -> None:
    assert await rendered(CHAT, LOADED) == RenderedChat("user: hi\nassistant: ")


async def test_a_chat_needs_a_template() -> None:
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        await rendered(CHAT, replace(LOADED, chat_template=None))
    assert caught.value.param == "messages"


HEARING = replace(RECIPE, kind="audio", form=None, seconds=1)


async def test_what_a_model_neither_sees_nor_hears_is_refused_by_its_place() -> None:
    sees, hears = replace(LOADED, **seeing()), replace(LOADED, **seeing(HEARING))
    for loaded, part, text in (
        (LOADED, Sound(b"x"), "is a sound, and this model reads only text"),
        (LOADED, Image(b"x"), "is an image, and this model reads only text"),
        (sees, Sound(b"x"), "is a sound, and this model takes texts and im"),
        (hears, Image(b"x"), "is an image, and this model takes texts and sounds"),
    ):
        with pytest.raises(UnsupportedParameter) as caught:
            await rendered((Message("user", ("?", part)),), loaded)
        assert f"messages[0].content[1] {text}" in caught.value.text
        assert caught.value.param == "messages[0].content[1]"
