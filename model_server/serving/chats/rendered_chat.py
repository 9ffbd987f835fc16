"""A chat as the text that its model's template makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model_server.loading.images.image_reader import ImageReader
from model_server.loading.images.prepared import PreparedImage
from model_server.loading.loaded import Loaded
from model_server.models.media.media_recipe import MediaRecipe, hears_videos, written_for
from model_server.serving.chats.placeholders import expanded
from model_server.text.chat_template import ChatTemplate
from model_server.text.text_length import check_messages
from sax.chat import Image, ToolChoice, Video, images_of
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.table import TOOLS_BYTES
from sax.format import quoted
from sax.types import PLAIN_CHAT, ChatOptions, Message

Prompt = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """Text for `encode_chat`: control tokens count, except where users wrote them."""

    text: str
    images: tuple[PreparedImage, ...] = ()  # or their parts, whose tokens are in the text


def is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and any(isinstance(part, Message) for part in prompt[:1])


async def rendered(
    prompt: Prompt, loaded: Loaded, chat: ChatOptions = PLAIN_CHAT, owner: str = ""
) -> Prompt | RenderedChat:
    """Render a prompt of messages; others are returned as they are. owner: of its images.

    Raises InvalidRequest and what `ChatTemplate.rendered` and `ImageReader.read` raise.
    """
    if isinstance(prompt, str):
        return prompt
    messages = [part for part in prompt if isinstance(part, Message)]
    if not messages:
        return prompt
    if loaded.chat_template is None:
        raise InvalidRequest(
            "this model has no chat template: send the prompt as text instead of messages",
            param="messages",
        )
    check_messages(messages, loaded.tokenizer, loaded.runner.limits.max_context)
    check_options(chat)
    return await written_chat(messages, loaded.chat_template, loaded.images, chat, owner)


async def written_chat(
    messages: Sequence[Message],
    template: ChatTemplate,
    reader: ImageReader | None,
    chat: ChatOptions = PLAIN_CHAT,
    owner: str = "",
) -> RenderedChat:
    """Return a chat as its model's template writes it, with the tokens of its images in place.

    reader: of its images; None: the model takes none. Raises as `rendered`.
    """
    images = images_of(messages)
    if not images:
        return RenderedChat(await template.rendered(messages, chat))
    if reader is None:
        raise UnsupportedParameter(
            f"{images[0].name} is {_KINDS[images[0].kind]}, and this model reads only text: leave "
            f"it out, or ask a model that takes {_plural(images[0].kind)}",
            param=images[0].name,
        )
    recipes = reader.recipes
    check_kinds(images, recipes)
    text = _without_marks(await template.rendered(messages, chat), recipes)
    prepared = await reader.read(images, owner)
    written = written_for(recipes)
    texts = [
        (written[image.kind], "".join(part.text for part in parts))
        for image, parts in zip(images, prepared, strict=True)
    ]
    each = tuple(part for parts in prepared for part in parts)
    return RenderedChat(expanded(text, texts), each)


def check_kinds(media: Sequence[Image], recipes: Sequence[MediaRecipe]) -> None:
    """Raise UnsupportedParameter naming a medium of a kind that the model does not take."""
    taken = written_for(recipes)
    for each in media:
        if isinstance(each, Video) and each.heard and not hears_videos(recipes):
            raise UnsupportedParameter(
                f"{each.name} is a video that is to be heard (use_audio_in_video), and this model "
                "does not hear them: leave that out, or ask another model",
                param=each.name,
            )
        if each.kind not in taken:
            names = " and ".join(["texts", *(_plural(kind) for kind in taken)])
            raise UnsupportedParameter(
                f"{each.name} is {_KINDS[each.kind]}, and this model takes {names}: leave it out, "
                "or ask another model",
                param=each.name,
            )


def _without_marks(text: str, recipes: Sequence[MediaRecipe]) -> str:
    """Drop what a template writes around a video, where the video's parts bring it themselves.

    As Qwen's own code does; transformers 5.24 would leave the marks standing twice.
    """
    for recipe in recipes:
        if recipe.video is not None and recipe.video.marked:
            text = text.replace(recipe.video.marked, recipe.video.placeholder)
    return text


def _plural(kind: str) -> str:
    return f"{_KINDS[kind].partition(' ')[2]}s"


_KINDS = {"image": "an image", "audio": "a sound", "video": "a video"}


def check_options(chat: ChatOptions) -> None:
    """Raise InvalidRequest for options that are out of range or contradict each other."""
    if chat.tool_choice not in [*ToolChoice]:
        raise InvalidRequest(
            f"tool_choice is {quoted(chat.tool_choice)}: give one of {', '.join(ToolChoice)}",
            param="tool_choice",
        )
    if chat.must_call and not chat.tools:
        raise InvalidRequest("tool_choice asks for a call: send tools, too", param="tool_choice")
    unknown = {*chat.allowed_tools} - {tool.name for tool in chat.tools}
    if unknown:
        raise InvalidRequest(
            f"tool_choice allows {quoted(min(unknown))}, which is none of the tools: name one of "
            "them",
            param="tool_choice",
        )
    size = sum(len(t.name) + len(t.description) + len(t.parameters) for t in chat.tools)
    if size > TOOLS_BYTES:
        raise InvalidRequest(
            f"tools have {size} characters; at most {TOOLS_BYTES} are allowed: send less",
            param="tools",
        )
