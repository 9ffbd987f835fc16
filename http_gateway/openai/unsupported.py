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
# Field -> the values besides null that change nothing. Any other value is refused.
CHAT_UNCHANGED: dict[str, tuple[object, ...]] = {
    "echo": (False,),  # a chat has no text of its own
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
}
STREAM_OPTIONS_UNCHANGED: dict[str, tuple[object, ...]] = {
    "include_obfuscation": (False,),
}


def refuse_unsupported(
    extra: Mapping[str, object] | None,
    no_op: Mapping[str, tuple[object, ...]],
    harmless: frozenset[str] = frozenset(),
    at: str = "",
) -> None:
    """Raise UnsupportedParameter for the first field that could not be honoured.

    `no_op`: for each known field, the values that change nothing and so are accepted.
    """
    if not extra:
        return
    check_names(extra, at)
    for name, value in extra.items():
        if name in harmless:
            field(RequestRoute.CHAT, name).check(value, at + name)
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
    if not no_op:
        return f"{name} is not supported: leave it out"
    values = " or ".join(repr(value) for value in no_op)
    return f"{name} is not supported: leave it out, or send {values}"
