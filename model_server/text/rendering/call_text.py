"""Calls in the text of a message, for templates that take tools and write no calls. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sax.call_form import (
    COMMAND,
    DEEPSEEK,
    DEEPSEEK_FENCED,
    GEMMA,
    HERMES,
    INDEX,
    JSON_LIST,
    LFM2,
    LLAMA3,
    MISTRAL,
    MISTRAL_LIST,
    NAME,
    TOOL_CALL_LIST,
    Arguments,
    CallForm,
)


def takes_tools(source: str) -> bool:
    """True if a template has a place for tools; SmolLM3's calls them xml_tools."""
    return re.search(r"\b(?:xml_)?tools\b", source) is not None


def form_by_words(source: str, control_tokens: Collection[str] = ()) -> CallForm:
    """Return how the model of a template that takes tools writes calls, told from its words."""
    # Qwen3-Coder and GLM write no JSON between the same tags.
    marked_pairs = "<function=" in source or "<arg_key>" in source
    known = (
        (LFM2.mark, LFM2),
        (DEEPSEEK.mark, DEEPSEEK_FENCED if "```json" in source else DEEPSEEK),
        (MISTRAL.mark, MISTRAL if "[ARGS]" in source else MISTRAL_LIST),
        (HERMES.mark, JSON_LIST if marked_pairs else HERMES),
        (COMMAND.mark, COMMAND),
        (TOOL_CALL_LIST.mark, TOOL_CALL_LIST),
        ("<|python_tag|>", LLAMA3),
        ('"parameters": dictionary', LLAMA3),
        ("<start_of_turn>", GEMMA),
    )
    said = (form for mark, form in known if mark in source)
    has = (form for mark, form in known if mark in control_tokens)
    return next(said, None) or next(has, JSON_LIST)


def call_text(form: CallForm, calls: Sequence[Mapping[str, Any]]) -> str:
    """Return calls as a form of objects or of Python writes them. calls: functions, each with its
    name and its arguments."""
    texts = (
        form.head.replace(NAME, call["name"]).replace(INDEX, str(n + form.first_index))
        + _arguments(form, call["arguments"])
        + form.tail
        for n, call in enumerate(calls)
    )
    return form.begin + form.between.join(texts) + form.end


def _arguments(form: CallForm, arguments: Any) -> str:
    if form.arguments != Arguments.PYTHON:
        return str(arguments)
    pairs = (
        f"{name}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)}"
        for name, value in arguments.items()
    )
    return ", ".join(pairs)
