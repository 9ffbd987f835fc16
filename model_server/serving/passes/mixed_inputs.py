"""Reads inputs of texts and images for models that see: images are decoded and prepared, and their
tokens stand among those of the texts.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from model_server.loading.images.prepared import PreparedImage
from model_server.loading.passes.loaded_passes import ImageReading, MixedInput
from model_server.models.media.media_recipe import written_for
from model_server.serving.chats.placeholders import expanded, places_of, triples_of
from model_server.serving.chats.rendered_chat import RenderedChat, check_kinds, written_chat
from model_server.serving.engine_request import salt_of
from model_server.serving.passes.texts import ReadsTexts, check_text, fitting
from model_server.serving.request_checks import check_ids
from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.late_tokenizer import DOCUMENT, QUERY
from model_server.text.text_length import check_messages
from sax.auth.acl import caller
from sax.chat import Content, Image, Message
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted
from sax.passes import ChatInput, EmbedInput, PairInput


class Sees(ReadsTexts, Protocol):
    """A loaded model that may see."""

    @property
    def image_reading(self) -> ImageReading | None: ...

    @property
    def vocab(self) -> int: ...


def has_images(inputs: Sequence[EmbedInput]) -> bool:
    """Return True for inputs that only models that see take."""
    return any(isinstance(each, Image | ChatInput) for each in inputs)


def check_reads(loaded: Sees, inputs: Sequence[EmbedInput], param: str) -> None:
    """Raise UnsupportedParameter for images and chats to a model that reads texts alone."""
    if loaded.image_reading is None and has_images(inputs):
        raise UnsupportedParameter(
            f"{param} has images or messages, and this model reads texts alone: send texts, or ask "
            "a model that sees",
            param=param,
        )


@dataclass(frozen=True, slots=True)
class MixedInputs:
    """Reads the inputs of one request."""

    loaded: Sees
    image_reading: ImageReading
    encoding: EncodingThreads

    async def read(
        self, inputs: Sequence[EmbedInput], param: str, prompt_name: str = ""
    ) -> list[MixedInput]:
        """Read each input. prompt_name: of the model's prompts, or the role of late interaction.

        Raises InvalidRequest, PromptTooLong, UnsupportedParameter, QueueFull, Unavailable.
        """
        alone = len(inputs) == 1
        made = (
            self._one(each, param if alone else f"{param} {index}", param, prompt_name)
            for index, each in enumerate(inputs)
        )
        return list(await asyncio.gather(*made))

    async def pairs(
        self, first: Sequence[PairInput], second: Sequence[PairInput]
    ) -> list[MixedInput]:
        """Read both of each pair together, as many first ones as second ones. Raises as `read`."""
        sides = [("first", each) for each in first] + [("second", each) for each in second]
        own = {id(given): (param, given) for param, given in reversed(sides)}  # each is read once
        written = (self._written(_content(given, param), param) for param, given in own.values())
        done = dict(zip(own, await asyncio.gather(*written), strict=True))
        made = list[MixedInput]()
        for index, both in enumerate(zip(first, second, strict=True)):
            a, b = (done[id(given)] for given in both)
            text = self.loaded.tokenizer.written_pair(a.text, b.text)
            whole = RenderedChat(text, (*a.images, *b.images))
            made.append(await self._encoded(whole, f"pair {index}", "second"))
        return made

    async def _one(self, given: EmbedInput, which: str, param: str, prompt_name: str) -> MixedInput:
        if not isinstance(given, str | Image | ChatInput):
            if not given:
                raise InvalidRequest(f"{which} is empty: send text or token ids", param=param)
            check_ids(which, given, self.loaded.vocab)
            return MixedInput(fitting(given, which, self.loaded, param))
        if self.image_reading.paired:
            self.loaded.tokenizer.prompt(prompt_name)  # raises: such a model has no prompts
            return await self._paired(_content(given, param), which, param)
        if self.image_reading.frames:
            return await self._framed(_content(given, param), which, param, prompt_name)
        instruction = self.loaded.tokenizer.prompt(prompt_name) or self.image_reading.instruction
        chat = given if isinstance(given, ChatInput) else ChatInput.of(given)
        return await self._encoded(await self._chat(chat, instruction, param), which, param)

    async def _paired(self, content: Content, which: str, param: str) -> MixedInput:
        """Read a text or an image."""
        parts = (content,) if isinstance(content, str) else content
        if len(parts) != 1:
            raise InvalidRequest(
                f"{which} has {len(parts)} texts and images: this model has a vector of one text "
                "or of one image, so send each as an input",
                param=param,
            )
        [part] = parts
        if isinstance(part, str):
            check_text(part, which, self.loaded, param)
            size = to_encode(len(part), self.loaded.tokenizer)
            ids = await self.encoding.run(size, lambda: self.loaded.tokenizer.encode(part))
            return MixedInput(fitting(ids, which, self.loaded, param))
        [images] = await self._prepared([part])
        return MixedInput(images=images)

    async def _framed(self, content: Content, which: str, param: str, role: str) -> MixedInput:
        """Read a query or a document of late interaction."""
        role = role or DOCUMENT
        if role not in (QUERY, DOCUMENT):
            raise UnsupportedParameter(
                f"prompt_name is {quoted(role)}: a late-interaction model has {QUERY} and "
                f"{DOCUMENT}",
                param="prompt_name",
            )
        made = await self._written(content, param)
        kind = "image" if made.images else role
        before, after = self.image_reading.frames.get(kind, ("", ""))
        whole = RenderedChat(f"{before}{made.text}{after}", made.images)
        return await self._encoded(whole, which, param)

    async def _chat(self, chat: ChatInput, instruction: str, param: str) -> RenderedChat:
        """Return a chat as the template writes it; without one, its parts one after the other."""
        messages, template = list(chat.messages), self.image_reading.template
        if not any(each.images or any(each.texts) for each in messages):
            raise InvalidRequest(f"{param} has an input that is empty: send text", param=param)
        if template is None:
            return await self._written(_content(chat, param), param)
        if messages[-1] == Message("assistant", ""):
            messages.pop()  # as clients write what the template adds
        if instruction and messages[0].role != "system":
            messages.insert(0, Message("system", instruction))
        check_messages(messages, self.loaded.tokenizer, self.loaded.max_context)
        return await written_chat(messages, template, self.image_reading.images, owner=_owner())

    async def _written(self, content: Content, param: str) -> RenderedChat:
        """Return texts, guarded, and images one after the other, without a template."""
        parts = (content,) if isinstance(content, str) else content
        tokenizer, images = self.loaded.tokenizer, [p for p in parts if isinstance(p, Image)]
        if not any(parts):
            raise InvalidRequest(f"{param} has an input that is empty: send text", param=param)
        for part in parts:
            if isinstance(part, str) and part:
                check_text(part, param, self.loaded, param)
        prepared = await self._prepared(images)
        marked = self.image_reading.marked
        text = "".join(tokenizer.guard(p) if isinstance(p, str) else marked for p in parts)
        [written] = set(written_for(self.image_reading.images.recipes).values()) or {""}
        texts = [(written, "".join(each.text for each in some)) for some in prepared]
        whole = expanded(text, texts) if texts else text
        return RenderedChat(whole, tuple(each for some in prepared for each in some))

    async def _prepared(self, images: Sequence[Image]) -> Sequence[tuple[PreparedImage, ...]]:
        check_kinds(images, self.image_reading.images.recipes)
        return await self.image_reading.images.read(images, _owner())

    async def _encoded(self, chat: RenderedChat, which: str, param: str) -> MixedInput:
        tokenizer, images = self.loaded.tokenizer, chat.images
        size = to_encode(len(chat.text), tokenizer)
        ids = await self.encoding.run(size, lambda: tokenizer.encode_chat(chat.text))
        fitting(ids, which, self.loaded, param)
        recipes = self.image_reading.images.recipes
        tokens = frozenset[int]().union(*(recipe.tokens for recipe in recipes))
        places = places_of(ids, tokens, images)
        if not images or not self.image_reading.triples:
            return MixedInput(ids, images, places)
        positions, _ = triples_of(len(ids), places, images)
        return MixedInput(ids, images, places, positions)


def _content(given: PairInput, param: str) -> Content:
    """Return the texts and images of an input that is one message. Raises InvalidRequest."""
    if not isinstance(given, ChatInput):
        return given if isinstance(given, str) else (given,)
    if len(given.messages) != 1:
        raise InvalidRequest(
            f"{param} has an input of {len(given.messages)} messages, and this model reads no "
            "chats: send the texts and images of one",
            param=param,
        )
    return given.messages[0].content


def _owner() -> str:
    """Return who shares what is kept of a request's images."""
    return salt_of(caller(), "", "")
