"""A chat as a request carries it: its messages, the tools that the model may call, and how the text
of the answer is divided into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from sax.call_form import CallForm

LEARNT = "learnt"  # in place of a ToolParser: as the template writes calls


class ToolParser(StrEnum):
    """Form in which a model writes calls of tools."""

    NONE = "none"
    HERMES = "hermes"  # <tool_call>{"name": ..., "arguments": ...}</tool_call>
    LLAMA3 = "llama3"  # {"name": ..., "parameters": ...}
    MISTRAL = "mistral"  # [TOOL_CALLS][{...}], [TOOL_CALLS]name[ARGS]{...}
    GEMMA = "gemma"  # [name(key=value)], as Python writes it
    DEEPSEEK = "deepseek"  # tokens with full-width bars
    GPT_OSS = "gpt_oss"  # harmony's commentary channel


class ReasoningParser(StrEnum):
    """Form in which a model writes its reasoning."""

    NONE = "none"
    THINK = "think"  # <think>...</think>, or other marks that the template writes
    GPT_OSS = "gpt_oss"  # harmony's analysis channel


# Efforts of reasoning -> the most tokens of it (None: no limit) where the model's template has no
# word for efforts.
THINKING_TOKENS: Mapping[str, int | None] = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": None,
    "max": None,
}


class ToolChoice(StrEnum):
    """OpenAI's tool_choice."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    FUNCTION = "function"  # the one that ChatOptions.tool_name says


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made in an earlier turn."""

    id: str
    name: str
    arguments: str = "{}"  # JSON


@dataclass(frozen=True, slots=True)
class Image:
    """An image among the parts of a message."""

    data: bytes = field(repr=False)  # of a JPEG, PNG or WebP file
    name: str = ""  # its place in the caller's request, for errors; "": its place in the chat
    kind: str = field(default="image", kw_only=True)  # or "audio", "video"


@dataclass(frozen=True, slots=True)
class Sound(Image):
    """A sound among the parts of a message: it takes the ways that an image takes.

    `data` is of a WAV, FLAC, MP3 or Ogg file.
    """

    kind: str = field(default="audio", kw_only=True)


_FRAMES = b"sax frames\n"  # begins the data of a video that a client sent as images
_FRAME_HEAD = 4  # bytes before each of them: its length, the highest first


@dataclass(frozen=True, slots=True)
class Video(Image):
    """A video among the parts of a message: it takes the ways that an image takes.

    `data` is of an MP4, MOV, WebM, Matroska or AVI file, or what `of_frames` makes of images.
    """

    kind: str = field(default="video", kw_only=True)
    heard: bool = field(default=False, kw_only=True)  # its sound track is read with its frames

    @classmethod
    def of_frames(cls, frames: Iterable[bytes], name: str = "") -> Video:
        """Return a video of JPEG, PNG or WebP files of one size, all of which a model sees.

        They count as 24 a second, as in transformers, which knows no more of them.
        """
        sized = (len(each).to_bytes(_FRAME_HEAD, "big") + each for each in frames)
        return cls(_FRAMES + b"".join(sized), name)


def frames_in(video: bytes) -> tuple[bytes, ...] | None:
    """Return the images that `Video.of_frames` made a video of; None: it is a file of a video.

    Raises ValueError, as the end of a sentence that begins "the video".
    """
    if not video.startswith(_FRAMES):
        return None
    images, at = list[bytes](), len(_FRAMES)
    while at < len(video):
        start = at + _FRAME_HEAD
        at = start + int.from_bytes(video[at:start], "big")
        images.append(video[start:at])
    if at != len(video):
        raise ValueError("is cut off: its last image is shorter than it states")
    return tuple(images)


Content = str | tuple[str | Image, ...]  # a text, or texts and media in their order


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: Content
    name: str = ""  # of the tool, or of who speaks
    tool_call_id: str = ""  # that this turn answers
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""  # before the content; most templates leave out that of earlier turns

    @property
    def texts(self) -> tuple[str, ...]:
        if isinstance(self.content, str):
            return (self.content,)
        return tuple(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> tuple[Image, ...]:
        """Its images, sounds and videos."""
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Image))

    @property
    def characters(self) -> int:
        """Characters of its texts."""
        return sum(map(len, self.texts))

    def without_data(self) -> Message:
        """Return the same turn with empty images: their places only."""
        if isinstance(self.content, str):
            return self
        places = (p if isinstance(p, str) else Image(b"", kind=p.kind) for p in self.content)
        return replace(self, content=tuple(places))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: str = ""  # JSON Schema of its arguments; "": it takes none
    strict: bool = False  # arguments keep to the schema even where a call is not forced


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of one chat besides its messages."""

    tools: tuple[Tool, ...] = ()
    tool_choice: str = ToolChoice.AUTO
    tool_name: str = ""
    allowed_tools: tuple[str, ...] = ()  # only these may be called; (): all
    parallel_tool_calls: bool = True  # False: at most one call
    chat_template_kwargs: str = ""  # JSON object: variables of the template
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the answer goes on where the last message ends
    # The first chunk tells how the answer is divided, and the marks that divide it have text.
    divided: bool = False

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != ToolChoice.NONE

    @property
    def callable_tools(self) -> tuple[str, ...]:
        """Names of the tools that an answer may call."""
        if not self.may_call:
            return ()
        return self.allowed_tools or tuple(tool.name for tool in self.tools)

    @property
    def must_call(self) -> bool:
        return self.tool_choice in (ToolChoice.REQUIRED, ToolChoice.FUNCTION)


PLAIN_CHAT = ChatOptions()


def images_of(messages: Iterable[Message]) -> tuple[Image, ...]:
    """Return the images, sounds and videos of a chat in their order, each with the name that errors
    call it by."""
    return tuple(
        part if part.name else replace(part, name=f"messages[{i}].content[{j}]")
        for i, message in enumerate(messages)
        for j, part in enumerate(message.content)
        if isinstance(part, Image)
    )


class AnswerFormat(msgspec.Struct, frozen=True, gc=False):
    """Forms by which the text of an answer is divided."""

    tools: str = ToolParser.NONE  # of an older gateway's parsers, the one that fits best
    reasoning: str = ReasoningParser.NONE
    reasoning_open: bool = False  # the answer begins inside the reasoning
    calls: CallForm | None = None  # None: as `tools` says
    # By tool and parameter, the JSON types of values, where a form writes values or keys without
    # quotes.
    kinds: dict[str, dict[str, list[str]]] = {}
    thoughts: tuple[str, str] | None = None  # around the reasoning; None: as `reasoning` says
    generic: bool = False  # the model's template has no tools: sax told it of them
