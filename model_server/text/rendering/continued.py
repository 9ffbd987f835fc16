"""Cuts a rendered chat where its last message ends, so that the answer goes on with it."""

from __future__ import annotations

from model_server.text.rendering.sandbox import RefusedChat


def continued(rendered: str, content: str) -> str:
    """Return the chat up to the end of its last message.

    A template may strip white space around a message; what it keeps behind the text is kept.
    Raises RefusedChat if the text is not there, or there is none.
    """
    if not (text := content.strip()):
        raise RefusedChat("cannot continue these messages: the last one has no text")
    if (start := rendered.rfind(text)) < 0:
        raise RefusedChat("cannot continue these messages: it leaves out the last one's text")
    trailing = content[len(content.rstrip()) :]
    end = start + len(text)
    while trailing and not rendered.startswith(trailing, end):
        trailing = trailing[:-1]
    return rendered[: end + len(trailing)]
