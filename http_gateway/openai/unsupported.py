"""Refuses fields that cannot be honoured, and declares those whose value changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from http_gateway import modes
from http_gateway.bounds import check_names
from sax.errors import UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import shortened

# Labels for the request; they do not change the answer.
LABELS = frozenset({"metadata", "safety_identifier"})
# Hints of a chat that may save time elsewhere, and never change an answer.
CHAT_LABELS = LABELS | {"prediction", "prompt_cache_options", "prompt_cache_retention"}
TIERS = ("auto", "default", "flex", "scale", "priority")  # here all are served alike
# Field -> the values besides null that change nothing. Any other value is refused.
CHAT_UNCHANGED: dict[str, tuple[object, ...]] = {
    "echo": (False,),  # a chat has no text of its own
    "audio": (),
    "function_call": ("none", "auto"),  # without functions
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "service_tier": TIERS,
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
}
# Why these hold nothing else.
CHAT_REMARKS = {
    "echo": "A chat has no text of its own.",
    "audio": "No model that chats speaks: /v1/audio/speech does.",
    "function_call": "The older form of tool_choice.",
    "functions": "The older form of tools.",
    "mm_processor_kwargs": "With use_audio_in_video the sound tracks of videos are heard, too; its "
    "other fields are refused.",
    "modalities": "Answers are texts.",
    "moderation": "No model here judges.",
    "service_tier": "All tiers are served alike.",
    "store": "Chats are not kept; responses are.",
    "verbosity": "No template has a word for it: say it in a message.",
    "web_search_options": "This server searches nothing.",
    "chat_template": "Templates are the operator's.",
    "prediction": "It would save time elsewhere.",
    "prompt_cache_options": "Every prompt is cached here.",
    "prompt_cache_retention": "Every prompt is cached here.",
    "tool_choice": "allowed_tools bounds calls to some tools; the template has all of them.",
    "tools": "Functions, and custom tools of free text, a regex or a Lark grammar.",
}
STREAM_OPTIONS_UNCHANGED: dict[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
}


def refuse_unsupported(
    extra: Mapping[str, object] | None,
    no_op: Mapping[str, tuple[object, ...]],
    harmless: frozenset[str] = frozenset(),
    at: str = "",
    route: RequestRoute = RequestRoute.CHAT,
) -> None:
    """Raise UnsupportedParameter for the first field that could not be honoured.

    `no_op`: for each known field, the values that change nothing and so are accepted. `route`: of
    the harmless fields' bounds.
    """
    if not extra:
        return
    check_names(extra, at)
    for name, value in extra.items():
        if name in harmless:
            field(route, name).check(value, at + name)
            continue
        if name in no_op and _changes_nothing(value, no_op[name]):
            continue
        path = at + shortened(name)
        if name not in no_op and modes.ignored(path):
            continue
        raise UnsupportedParameter(_refusal(path, no_op.get(name)), param=path)


def _changes_nothing(value: object, no_op: tuple[object, ...]) -> bool:
    same = (
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in no_op
    )
    return value is None or any(same)


def _refusal(name: str, no_op: tuple[object, ...] | None) -> str:
    if no_op is None:
        return f"{name} is not a known field: leave it out"
    values = " or ".join(repr(value) for value in no_op)
    text = f"{name} is not supported: leave it out" + (f", or send {values}" if no_op else "")
    remark = CHAT_REMARKS.get(name, "")
    return f"{text}. {remark}" if remark else text
