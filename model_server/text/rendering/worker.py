"""The process that renders chat templates, within limits of time and memory.

    python -m model_server.text.rendering.worker SECONDS NICENESS

Reads requests from standard input and writes answers to standard output until the input ends, which
it does when the server dies, however it dies. The kernel ends this process if one request uses more
than SECONDS of processor time, even inside one call of C code.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import msgspec

from model_server.sharing.confined.limits import confine, run
from model_server.text.control_tokens import ControlTokens
from model_server.text.rendering.call_probe import learnt, takes_system
from model_server.text.rendering.call_text import call_text, form_by_words, takes_tools
from model_server.text.rendering.frames import Answer, Ask, TemplateParts, WrittenForms, framed
from model_server.text.rendering.past_calls import CallArguments, read_arguments, whole, with_ids
from model_server.text.rendering.sandbox import (
    BrokenTemplate,
    CompiledTemplate,
    GivenList,
    RefusedChat,
    RunawayTemplate,
)
from sax.call_form import CallForm, IdForm
from sax.chat import ChatOptions, Content, Image, Message, Tool, ToolCall

# Makes the variables of a chat template: messages, tools and options as transformers gives them.
#
# Every text of users is guarded, so that none of it can become a control token.

Guard = Callable[[str], str]
_NO_PARAMETERS = '{"type": "object", "properties": {}}'
_PROBE = "How far away is the Moon?"
_PROBE_TEXT = Message("user", _PROBE)
_CALLED = "measure_the_distance"
_PROBE_CALL = (
    _PROBE_TEXT,
    Message("assistant", "", tool_calls=(ToolCall("123456789", _CALLED, "{}"),)),
    Message("tool", "384400", name=_CALLED, tool_call_id="123456789"),
)
_Rendered = Callable[[tuple[Message, ...], "ContentForm"], str]


@dataclass(frozen=True, slots=True)
class ContentForm:
    """The form of a message's content that a template takes: a text, or a list of parts.

    Templates of models with image or audio input go through `message['content']` where it is a
    list; some of them take nothing else, and others only texts. Each form is tried out.
    """

    # What stands for an image, a video or an audio in a text, by kind
    media: Mapping[str, str] = field(default_factory=dict[str, str])
    lists_only: bool = False  # texts, too, come as lists of parts
    texts_only: bool = False  # images come as what stands for them, between the texts
    calls: CallForm | None = None  # how calls are written into the text; None: the template does
    # A message that only calls has an empty text, and not none; None: not tried out yet.
    empty_text: bool | None = None

    @property
    def without_text(self) -> str | None:
        """The content of a message that only calls tools."""
        return None if self.empty_text is False else ""

    def value(self, content: Content, guard: Callable[[str], str]) -> Any:
        if isinstance(content, str):
            return [_text(guard(content))] if self.lists_only else guard(content)
        if self.texts_only:
            parts = (guard(x) if isinstance(x, str) else self.media[x.kind] for x in content)
            return "\n".join(parts)
        # Some templates look for a part's type, and some for a key of that name.
        return [
            _text(guard(part)) if isinstance(part, str) else _place(part.kind) for part in content
        ]


def _place(kind: str) -> dict[str, str]:
    return {"type": kind} | ({} if kind == "image" else {kind: ""})


_TEXTS = ContentForm()


def _tried_form(media: Mapping[str, str], rendered: _Rendered) -> ContentForm:
    """Return the form that a template takes. rendered: its text for a chat in a form; "": it
    refuses that."""
    form, (kind, written) = ContentForm(media), next(iter(media.items()))
    as_text = rendered((_PROBE_TEXT,), form)
    as_list = rendered((Message("user", (_PROBE, Image(b"", kind=kind))),), form)
    if _PROBE in as_list and as_list.count(written) == 1 + as_text.count(written):
        return replace(form, lists_only=_PROBE not in as_text)
    return replace(form, texts_only=True)


def _tried_without_text(form: ContentForm, rendered: _Rendered) -> ContentForm:
    """Return the form with what a template takes as the content of a message that only calls: the
    call must be there, and no word for nothing."""
    for each in (replace(form, empty_text=True), replace(form, empty_text=False)):
        text = rendered(_PROBE_CALL, each)
        if _CALLED in text and "None" not in text:
            return each
    return replace(form, empty_text=True)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def chat_values(
    messages: tuple[Message, ...],
    options: ChatOptions,
    guard: Guard,
    form: ContentForm = _TEXTS,
) -> dict[str, Any]:
    """Return the variables. Raises RefusedChat for a text that should be JSON and is not.

    form: of the contents that the template takes.
    """
    values = _parsed(options.chat_template_kwargs or "{}", "chat_template_kwargs", guard)
    tools = [_tool(tool, f"tools[{n}]", guard) for n, tool in enumerate(options.tools)]
    return {
        **values,
        "messages": GivenList(
            _turn(each, f"messages[{n}]", guard, form) for n, each in enumerate(messages)
        ),
        "add_generation_prompt": (
            options.add_generation_prompt and not options.continue_final_message
        ),
        "continue_final_message": options.continue_final_message,
        "tools": tools or None,
        "xml_tools": tools or None,  # SmolLM3's word
        "documents": None,
    }


def _turn(message: Message, at: str, guard: Guard, form: ContentForm) -> dict[str, Any]:
    content = form.value(message.content, guard)
    turn: dict[str, Any] = {"role": guard(message.role), "content": content}
    if message.name:
        turn["name"] = guard(message.name)
    if message.tool_call_id:
        turn["tool_call_id"] = guard(message.tool_call_id)
    if message.tool_calls:
        calls = [
            _call(call, f"{at}.tool_calls[{n}]", guard) for n, call in enumerate(message.tool_calls)
        ]
        if form.calls is not None and isinstance(content, str):
            turn["content"] = content + call_text(form.calls, [c["function"] for c in calls])
        else:
            turn["content"] = content or form.without_text
            turn["tool_calls"] = calls
    if message.reasoning:
        # Qwen and DeepSeek, gpt-oss: each family has its own word.
        reasoning = guard(message.reasoning)
        turn |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reasoning)
    return turn


def _call(call: ToolCall, at: str, guard: Guard) -> dict[str, Any]:
    read = read_arguments(call.arguments)
    if read is None:
        raise _no_object(f"{at}.function.arguments")
    values, source = read
    arguments = CallArguments(_guarded(values, guard), guard(source))
    function = {"name": guard(call.name), "arguments": arguments}
    return {"id": guard(call.id), "type": "function", "function": function}


def _tool(tool: Tool, at: str, guard: Guard) -> dict[str, Any]:
    function: dict[str, Any] = {"name": guard(tool.name)}
    if tool.description:
        function["description"] = guard(tool.description)
    source = tool.parameters or _NO_PARAMETERS
    function["parameters"] = _parsed(source, f"{at}.function.parameters", guard)
    return {"type": "function", "function": function}


def _parsed(source: str, at: str, guard: Guard) -> dict[str, Any]:
    """Return a JSON object with guarded texts."""
    try:
        value = json.loads(source)
        if isinstance(value, dict):
            return _guarded(whole(cast("dict[str, Any]", value)), guard)
    except (ValueError, RecursionError):
        pass
    raise _no_object(at)


def _no_object(at: str) -> RefusedChat:
    return RefusedChat(f"cannot have these messages: {at} is no JSON object")


def _guarded(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [_guarded(each, guard) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {guard(key): _guarded(each, guard) for key, each in items}
    return value


_MARK = "\U0010fffd"  # a character that means nothing, to Unicode and to tokenizers

MEMORY = 512 << 20  # bytes that this process may allocate
_ADDRESSES = 2 << 30  # bytes of address space: mapped libraries and locales count here
_KEPT = 1 << 21  # characters of the templates that stay compiled
_UNKNOWN = Answer("unknown")


class KnownTemplate:
    def __init__(self, parts: TemplateParts) -> None:
        self.size = parts.size
        self._learning = False  # ids are given as they are
        self._fixed = {"bos_token": parts.bos_token, "eos_token": parts.eos_token}
        self._control_tokens = ControlTokens(parts.control_tokens)
        self._compiled = CompiledTemplate(parts.source)
        form = _tried_form(dict(parts.media), self._probe) if parts.media else _TEXTS
        writes = "tool_calls" in parts.source or not takes_tools(parts.source)
        calls = None if writes else form_by_words(parts.source, parts.control_tokens)
        self._form = replace(form, calls=calls)

    def render(self, chat: tuple[Message, ...], options: ChatOptions) -> str:
        if any(each.tool_calls for each in chat):
            chat = with_ids(chat, self._ids)
        form = self._form
        only_calls = form.empty_text is None and form.calls is None
        if only_calls and any(each.tool_calls and not each.content for each in chat):
            form = self._form = _tried_without_text(form, self._probe)
        if options.continue_final_message:
            return continued(self._rendered(marked(chat), options, form), chat)
        return self._rendered(chat, options, form)

    def _rendered(self, chat: tuple[Message, ...], options: ChatOptions, form: ContentForm) -> str:
        values = chat_values(chat, options, self._control_tokens.guard, form)
        return self._compiled.render({**values, **self._fixed})

    @cached_property
    def learnt(self) -> WrittenForms:
        """The forms of calls and reasoning that the template writes."""
        return WrittenForms(*learnt(self.tried), takes_system(self.tried))

    @property
    def _ids(self) -> str:
        """The ids of calls that the template takes."""
        if self._learning:
            return IdForm.ANY
        return IdForm.ANY if self.learnt.calls is None else self.learnt.calls.ids

    def tried(self, chat: tuple[Message, ...], options: ChatOptions) -> str | None:
        self._learning = True
        try:
            return self.render(chat, options)
        except RefusedChat:
            return None
        finally:
            self._learning = False

    def _probe(self, chat: tuple[Message, ...], form: ContentForm) -> str:
        try:
            return self._rendered(chat, ChatOptions(), form)
        except RefusedChat:
            return ""


class Templates:
    """The templates compiled last, by key."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, KnownTemplate] = OrderedDict()

    def answer(self, ask: Ask) -> Answer:
        try:
            template = self._template(ask)
            if template is None:
                return _UNKNOWN
            if ask.learn:
                return Answer("text", msgspec.json.encode(template.learnt).decode())
            if ask.chat is None:
                return Answer("text")
            return Answer("text", template.render(ask.chat, ask.options))
        except BrokenTemplate as exc:
            return Answer("broken", str(exc))
        except RefusedChat as exc:
            return Answer("refused", str(exc))
        except RunawayTemplate as exc:
            return Answer("runaway", str(exc))
        except MemoryError:
            return Answer("runaway", f"needs more than {MEMORY >> 20} MiB; send a shorter chat")

    def _template(self, ask: Ask) -> KnownTemplate | None:
        if found := self._known.get(ask.key):
            self._known.move_to_end(ask.key)
        elif ask.parts is not None:
            found = self._known[ask.key] = KnownTemplate(ask.parts)
            while len(self._known) > 1 and sum(t.size for t in self._known.values()) > _KEPT:
                self._known.popitem(last=False)
        return found


def _framed(answer: Answer) -> bytes:
    try:
        return framed(answer)
    except UnicodeEncodeError:
        return framed(Answer("refused", "writes text that is not Unicode"))
    except MemoryError:
        return framed(Answer("runaway", "writes more text than fits into memory"))


def main() -> None:
    confine(MEMORY, _ADDRESSES)
    templates, decoder = Templates(), msgspec.msgpack.Decoder(Ask)
    run(lambda frame: _framed(templates.answer(decoder.decode(frame))))


def marked(chat: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the chat with a mark behind the last text of its last message.

    White space at the end stays behind the mark, where a template may strip it. Raises RefusedChat
    if there is no text.
    """
    if not chat or not chat[-1].texts:
        raise RefusedChat("cannot continue these messages: the last one has no text")
    *others, last = chat
    if isinstance(last.content, str):
        return (*others, replace(last, content=_with_mark(last.content)))
    parts = list(last.content)
    at = max(n for n, part in enumerate(parts) if isinstance(part, str))
    parts[at] = _with_mark(str(parts[at]))
    return (*others, replace(last, content=tuple(parts)))


def continued(rendered: str, chat: tuple[Message, ...]) -> str:
    """Return the rendered chat up to the mark, and what the template keeps of the white space.

    chat: without the mark. Raises RefusedChat if the text of the last message is not there.
    """
    before, mark, behind = rendered.rpartition(_MARK)
    if not mark:
        raise RefusedChat("cannot continue these messages: it leaves out the last one's text")
    text = chat[-1].texts[-1]
    trailing = text[len(text.rstrip()) :]
    while not behind.startswith(trailing):
        trailing = trailing[:-1]
    return before + trailing


def _with_mark(text: str) -> str:
    kept = text.rstrip()
    return kept + _MARK + text[len(kept) :]


if __name__ == "__main__":
    main()
