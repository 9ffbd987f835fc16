"""Cuts a rendered chat where its last message ends, so that the answer goes on with it."""

from __future__ import annotations

from dataclasses import replace

from model_server.text.rendering.sandbox import RefusedChat
from sax.chat import Message

_MARK = "\U0010fffd"  # a character that means nothing, to Unicode and to tokenizers


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
