"""Anthropic's threads: conversations that the server holds, which this gateway does not.

A client may begin one, as its first request has the whole conversation. One that goes on gets the
error by which Anthropic's clients know that they must send the whole conversation again.
"""

from __future__ import annotations

from collections.abc import Mapping

from sax.errors import InvalidRequest, NotFound


class ThreadNotFound(NotFound):
    """A conversation that this gateway does not hold."""


def check_thread(value: Mapping[str, object] | None) -> None:
    """Raise ThreadNotFound for a thread that goes on, InvalidRequest for what is no thread."""
    if value is None or value == {"type": "create"}:
        return
    if value.get("type") == "continue":
        raise ThreadNotFound(
            "thread.previous_message_id is not known: this gateway holds no conversations; send "
            "the whole conversation in messages",
            param="thread",
        )
    raise InvalidRequest('thread: send {"type": "create"}, or leave it out', param="thread")
