"""Renders a chat with the Jinja template of a checkpoint.

Templates come with checkpoints, so they run in a process of their own, sandboxed and within limits
of time and memory (see `rendering`). User text cannot become a control token (see
`control_tokens`).

A template may have no place for tools. They are told of in a system text then, calls stand in the
text of an answer, and results come as messages of the user; the form of calls is the one that the
template writes, if it writes calls, and else Hermes', which most models have seen.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from msgspec import structs

from model_server.sharing.confined.lanes import LaneKind, Lanes
from model_server.sharing.confined.process import ConfinedProcess
from model_server.text.rendering.call_text import call_text, takes_tools
from model_server.text.rendering.frames import (
    MAX_ANSWER,
    Answer,
    Ask,
    TemplateParts,
    WrittenForms,
    framed,
)
from sax.call_form import HERMES, Arguments, CallForm
from sax.chat import (
    PLAIN_CHAT,
    THINKING_TOKENS,
    ChatOptions,
    Content,
    Image,
    Message,
    Tool,
    ToolChoice,
)
from sax.errors import CheckpointError, InvalidRequest, Unavailable, UnsupportedParameter
from sax.format import shortened

_DECODER = msgspec.msgpack.Decoder(Answer)
_FORMS = msgspec.json.Decoder(WrittenForms)
_WORKER = "model_server.text.rendering.worker"
_TOOLS_SYSTEM = """\
You can call functions. Each line describes one, with its parameters as a JSON Schema:
{tools}

To call a function, answer with its name and its arguments, and nothing behind it:
{example}
Several calls may follow each other. Their results come in the next message. {choice}"""
_EXAMPLE = {"parameter": "value"}
_FREE = "If no function helps, answer in words."
_FORCED = "Now you must call a function."


class RenderProcess(ConfinedProcess):
    """The server's end of a process that renders chat templates."""

    def __init__(self, seconds: float, niceness: int = 0) -> None:
        """`seconds`: processor time for one request."""
        super().__init__(_WORKER, seconds, niceness, doing="renders it", most=MAX_ANSWER)

    def answer(self, ask: Ask) -> Answer:
        """Raises ProcessEnded, ProcessStarved, OSError, or UnicodeEncodeError for text with lone
        surrogates."""
        return self.exchange(framed(ask), _DECODER.decode)


QUICK_S = 0.2  # processor time of a chat in the quick lane
SLOW_S = 1.0  # and in the slow one
_WAIT_S = 3.0


class _Chat(NamedTuple):
    ask: Ask
    parts: TemplateParts


class _TemplateProcess:
    """Tells the process of a template when it does not know it."""

    def __init__(self, seconds: float, niceness: int) -> None:
        self._process = RenderProcess(seconds, niceness)
        self.start = self._process.start
        self.stop = self._process.stop

    def answer(self, chat: _Chat) -> Answer:
        try:
            answer = self._process.answer(chat.ask)
            if answer.kind == "unknown":
                answer = self._process.answer(structs.replace(chat.ask, parts=chat.parts))
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"the chat is not Unicode text: {exc}", param="messages") from exc
        return answer


class TriedTemplates(Protocol):
    """Templates that were tried out before, by this version of sax, and what they write."""

    def find(self, key: bytes) -> bytes | None: ...

    def keep(self, key: bytes, forms: bytes) -> None: ...


class Renderer:
    """Thread-safe. Its processes start with the first chat and end with this one."""

    tried: TriedTemplates | None = None  # of earlier processes

    def __init__(self) -> None:
        self._lanes = Lanes(
            LaneKind[_Chat, Answer](
                name="chat templates",
                doing="to render",
                process=_TemplateProcess,
                quick_s=QUICK_S,
                slow_s=SLOW_S,
                wait_s=_WAIT_S,
                refused=_refused,
                ended=lambda how: Answer("runaway", how),
                spent=lambda answer: answer.kind == "runaway",
            )
        )

    def submit(self, ask: Ask, parts: TemplateParts) -> Future[Answer]:
        """Render a chat. The future raises Unavailable or InvalidRequest."""
        return self._lanes.submit(ask.key, _Chat(ask, parts))

    def try_out(self, ask: Ask, parts: TemplateParts) -> Answer:
        """Render with a template that nobody knows yet, away from the chats. Blocks."""
        return self._lanes.try_out(ask.key, _Chat(ask, parts))


def _refused(why: str, retry_after_s: float) -> Unavailable:
    # Not QueueFull: the caller would send it to another replica, with the same template.
    return Unavailable(why, retry_after_s=retry_after_s)


@cache
def renderer() -> Renderer:
    """Return the renderer of this process."""
    return Renderer()


_SYSTEM = Message("system", "You answer in one sentence.")
_QUESTION = Message("user", "How far away is the Moon?")
_ANSWER = Message("assistant", "About 384,000 kilometres.")
# Conversations that every template is tried on, and if the model is to answer next.
_TRIALS: tuple[tuple[tuple[Message, ...], bool], ...] = (
    ((_SYSTEM, _QUESTION), True),
    ((_QUESTION, _ANSWER, _QUESTION), True),
    ((_QUESTION, _ANSWER), False),
)
# Variables that a request sets otherwise, or not at all.
_RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "chat_template", "tokenize"),
    }
)


class ChatTemplate:
    """A model's chat template. Rendering is thread-safe."""

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Collection[str] = (),
        media: Mapping[str, str] | None = None,
        for_tools: str = "",
    ) -> None:
        """media: what the template writes for each kind that the model takes: image, video, audio.
        for_tools: another template for chats with tools, if the checkpoint has one. Raises
        CheckpointError if one does not compile."""
        self.source = source
        self._for_tools = (
            ChatTemplate(for_tools, bos_token, eos_token, special_tokens, media)
            if for_tools
            else None
        )
        self._words = frozenset(re.findall(r"[A-Za-z_]\w*", source))
        media = media or {}
        tokens = tuple(sorted({*special_tokens, *media.values()}))
        self._parts = TemplateParts(source, bos_token, eos_token, tokens, (*media.items(),))
        self._key = _key(self._parts)
        tried = renderer().tried
        known = None if tried is None else tried.find(self._key)
        self._written: WrittenForms | None = _FORMS.decode(known) if known else None
        self._is_tried = known is not None
        if known is None:
            self._accept(renderer().try_out(Ask(self._key, None), self._parts))

    def replaced(self, source: str) -> ChatTemplate:
        """Return another template, for all chats, with the same tokens. Raises CheckpointError."""
        parts = self._parts
        tokens = parts.control_tokens
        return ChatTemplate(source, parts.bos_token, parts.eos_token, tokens, dict(parts.media))

    def with_media(self, **media: str) -> ChatTemplate:
        """Return the same template for a model that takes more than texts. media: what it writes
        for an image, a video and an audio each, which users cannot write."""
        parts = self._parts
        return ChatTemplate(
            self.source,
            parts.bos_token,
            parts.eos_token,
            parts.control_tokens,
            media,
            self.for_tools,
        )

    @property
    def for_tools(self) -> str:
        """The source of the other template, for chats with tools; "": there is none."""
        return "" if self._for_tools is None else self._for_tools.source

    def knows(self, variable: str) -> bool:
        """Return True if the template may read such a variable."""
        return variable in self._words

    def try_out(self) -> None:
        """Render three conversations. Raises CheckpointError if one exceeds a limit.

        A template may refuse them, as some refuse a system message. One that earlier processes
        tried out is believed to do as it did then.
        """
        if self._for_tools is not None:
            self._for_tools.try_out()
        if self._is_tried:
            return
        for messages, add_generation_prompt in _TRIALS:
            options = ChatOptions(add_generation_prompt=add_generation_prompt)
            ask = Ask(self._key, messages, options)
            self._accept(renderer().try_out(ask, self._parts))
        self._is_tried = True

    def prepare(self) -> None:
        """Let the first chat wait neither for a process nor for the compiler. Does not block."""
        if self._for_tools is not None:
            self._for_tools.prepare()
        renderer().submit(Ask(self._key, None), self._parts)

    def written(self) -> WrittenForms:
        """Return the forms in which the template writes calls and reasoning. Blocks."""
        if self._for_tools is not None:
            return self._for_tools.written()
        if self._written is None:
            answer = renderer().try_out(Ask(self._key, None, learn=True), self._parts)
            found = answer.kind == "text"
            self._written = _FORMS.decode(answer.text) if found else WrittenForms()
            if found and self._is_tried and (tried := renderer().tried) is not None:
                tried.keep(self._key, answer.text.encode())
        return self._written

    @property
    def generic(self) -> bool:
        """True if sax tells the model of tools, as the template has no place for them."""
        return self._for_tools is None and not takes_tools(self.source)

    def render(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Return the chat as text. Blocks; on an event loop use `rendered`.

        Raises InvalidRequest if the template rejects the messages or exceeds a limit, or does not
        take what the options ask for; Unavailable if too many chats of slow templates wait.

        Control tokens in user text come out marked, so that `encode_chat` of the same checkpoint's
        tokenizer treats them as text.
        """
        return _text(self._submit(messages, options).result())

    async def rendered(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Return the chat as text, ready for an answer. Raises as `render` does."""
        return _text(await asyncio.wrap_future(self._submit(messages, options)))

    def _submit(self, messages: Sequence[Message], options: ChatOptions) -> Future[Answer]:
        if self._for_tools is not None and (options.tools or any(e.tool_calls for e in messages)):
            return self._for_tools._submit(messages, options)
        called = "tool_calls" not in self._words and any(each.tool_calls for each in messages)
        if (options.may_call or called) and self.generic:
            messages, options = without_tools(messages, options, self.written())
        if options != PLAIN_CHAT:
            options = self._checked(options)
        places = tuple(each.without_data() for each in messages)
        return renderer().submit(Ask(self._key, places, options), self._parts)

    def _checked(self, options: ChatOptions) -> ChatOptions:
        """Return the options as the template takes them. Raises InvalidRequest by name."""
        if not options.chat_template_kwargs:
            return options
        values = self._values(options.chat_template_kwargs)
        return replace(options, chat_template_kwargs=json.dumps(values))

    def _values(self, source: str) -> dict[str, Any]:
        values = _object(source)
        effort = values.get("reasoning_effort")
        if effort in [*THINKING_TOKENS] and not self.knows("reasoning_effort"):
            del values["reasoning_effort"]  # a number of tokens stands for it
            if effort == "none" and self.knows("enable_thinking"):
                values.setdefault("enable_thinking", False)
        for name in values:
            if name in self._words and name not in _RESERVED:
                continue
            path = "" if name == "reasoning_effort" else "chat_template_kwargs."
            path += shortened(name)
            raise UnsupportedParameter(
                f"{path} is not supported: it is no variable of this model's chat template that a "
                "request may set; leave it out",
                param=path,
            )
        return values

    def _accept(self, answer: Answer) -> None:
        if answer.kind in ("broken", "runaway"):
            raise CheckpointError(f"the chat template {answer.text}")


def _key(parts: TemplateParts) -> bytes:
    try:
        return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()
    except UnicodeEncodeError as exc:
        raise CheckpointError(f"the chat template is not Unicode text: {exc}") from exc


def _object(source: str) -> dict[str, Any]:
    """Raises InvalidRequest."""
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(
            f"chat_template_kwargs is no JSON: {exc}", param="chat_template_kwargs"
        ) from exc
    if not isinstance(value, dict):
        raise InvalidRequest("chat_template_kwargs must be an object", param="chat_template_kwargs")
    return cast("dict[str, Any]", value)


def _text(answer: Answer) -> str:
    """Raises InvalidRequest if there is no text."""
    if answer.kind != "text":
        raise InvalidRequest(f"the model's chat template {answer.text}", param="messages")
    return answer.text


def without_tools(
    chat: Sequence[Message], options: ChatOptions, written: WrittenForms
) -> tuple[tuple[Message, ...], ChatOptions]:
    """Return a chat that says in texts what tools, calls and results say, and its options.

    written: what the template writes. If that is calls, it has them as they are.
    """
    turns = [_told(turn) if written.calls is None else turn for turn in chat]
    joined: list[Message] = []
    for turn, told in zip(chat, turns, strict=True):
        last = joined[-1] if joined else None
        # Many templates want users and assistants to take turns.
        if last is not None and told.role == "user" == last.role and turn.role == "tool":
            joined[-1] = replace(last, content=_joined(last.content, told.content))
        else:
            joined.append(told)
    if options.may_call:
        text = _told_of_tools(options, written.calls or HERMES)
        joined = _with_system(joined, text, system=written.system)
    return tuple(joined), replace(options, tools=(), tool_choice=ToolChoice.AUTO, tool_name="")


def _told_of_tools(options: ChatOptions, form: CallForm) -> str:
    tools = "\n".join(map(_described, options.tools))
    choice = _FORCED if options.must_call else _FREE
    example: object = json.dumps(_EXAMPLE)
    if form.arguments not in (Arguments.OBJECT, Arguments.JSON):
        example = {} if form.arguments == Arguments.PYTHON else ""
    call = {"name": "function_name", "arguments": example}
    return _TOOLS_SYSTEM.format(tools=tools, example=call_text(form, [call]), choice=choice)


def _described(tool: Tool) -> str:
    described = f'{{"name": {_dumps(tool.name)}'
    if tool.description:
        described += f', "description": {_dumps(tool.description)}'
    return f'{described}, "parameters": {tool.parameters or "{}"}}}'


def _with_system(chat: list[Message], text: str, *, system: bool) -> list[Message]:
    """Return the chat with a text in its first system message, or in front of the first message."""
    if chat and (chat[0].role == "system" or not system):
        first, *others = chat
        order = (first.content, text) if first.role == "system" else (text, first.content)
        return [replace(first, content=_joined(*order)), *others]
    return [Message("system", text), *chat]


def _told(turn: Message) -> Message:
    if turn.role == "tool":
        named = f" of {turn.name}" if turn.name else ""
        begin, end = f"<tool_response>\nResult{named}: ", "\n</tool_response>"
        if isinstance(turn.content, str):
            return Message("user", begin + turn.content + end)
        return Message("user", (begin, *turn.content, end))
    if not turn.tool_calls:
        return turn
    calls = call_text(
        HERMES, [{"name": c.name, "arguments": c.arguments or "{}"} for c in turn.tool_calls]
    )
    return replace(turn, content=_joined(turn.content, calls, "\n"), tool_calls=())


def _joined(first: Content, second: Content, between: str = "\n\n") -> Content:
    if not first:
        return second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{between}{second}"
    return (*_parts(first), between, *_parts(second))


def _parts(content: Content) -> tuple[str | Image, ...]:
    return (content,) if isinstance(content, str) else content


def _dumps(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
