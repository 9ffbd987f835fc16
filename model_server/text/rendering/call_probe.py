"""Finds how a chat template writes calls of tools: renders known ones and looks where they stand.

The text of two calls in one turn is cut at what is known: their names, ids, keys and values. What
is left between them are the texts of the form. Pure but for the rendering.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from os.path import commonprefix
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from model_server.text.rendering.found_call import (
    VALUES,
    FoundCall,
    boundary,
    found_call,
    shared_end,
    shared_start,
)
from sax.call_form import FUNCTIONS_ID, ID, INDEX, NAME, Arguments, CallForm, IdForm
from sax.chat import ChatOptions, Message, Tool, ToolCall

# Renders a conversation; None: the template refuses it.
Rendered = Callable[[tuple[Message, ...], ChatOptions], str | None]

_FIRST, _SECOND = "zqalpha", "zqbeta"
_SECOND_VALUES: Mapping[str, Any] = {"kqx": "Vqx"}
_ANY: dict[str, Any] = {"type": "string", "description": "any"}
_PARAMETERS = json.dumps(
    {"type": "object", "properties": dict.fromkeys(VALUES, _ANY), "required": ["kqa"]}
)
TOOLS = (Tool(_FIRST, "first", _PARAMETERS), Tool(_SECOND, "second", _PARAMETERS))
_CALLS = (
    ToolCall("zq1234567", _FIRST, json.dumps(VALUES)),
    ToolCall("zr1234567", _SECOND, json.dumps(_SECOND_VALUES)),
)
_ASK = Message("user", "Uqu")
_SAID = "Cqc"
_WITH_TOOLS = ChatOptions(tools=TOOLS, add_generation_prompt=False)


class _Turn(NamedTuple):
    """A rendered turn of calls, from where it begins to differ from one of plain text."""

    text: str
    calls: int
    end: str  # behind the text of a turn without calls


def learnt(rendered: Rendered) -> tuple[CallForm | None, tuple[str, str] | None]:
    """Return the form of a template's calls, and the texts before and behind the reasoning of a
    turn; None: it writes none, or in no form known here."""
    reasoning = learnt_reasoning(rendered)
    turn = _turn(rendered, reasoning)
    if turn is None:
        return None, reasoning
    if reasoning is None and (empty := _NO_THOUGHT.match(turn.text)):
        reasoning = empty[1], empty[2]
        turn = turn._replace(text=turn.text[empty.end() :])
    return _learnt_calls(rendered, turn), reasoning


def _learnt_calls(rendered: Rendered, turn: _Turn) -> CallForm | None:
    body = found_call(turn.text, _CALLS[0])
    form = None if body is None else _whole(turn, body)
    if form is None:
        return None
    form = _with_object(form, turn.text)
    if form.arguments == Arguments.PAIRS:
        marked = ToolCall(_CALLS[0].id, _FIRST, json.dumps({**VALUES, "kqa": "<Vqa&"}))
        form = replace(form, cdata="<![CDATA[<Vqa&]]>" in (_render(rendered, (marked,)) or ""))
    short = _render(rendered, (ToolCall("call_0123456789", _FIRST, _CALLS[0].arguments),)) is None
    ids = IdForm.FUNCTIONS if FUNCTIONS_ID in form.head else IdForm.SHORT if short else IdForm.ANY
    return replace(form, mark=_mark(form), ids=ids)


_NO_THOUGHT = re.compile(r"\s*(<[^<>]*think[^<>]*>)\s*(<[^<>]*think[^<>]*>)", re.IGNORECASE)
_OPENS = re.compile(r"((?:<[^<>]*>think)?<[^<>]*>(?:thought)?|\[[A-Z]+\])\s*\Z")
_CLOSES = re.compile(r"\s*(?:<[^<>]*>|\[/[A-Z]+\])")
_THOUGHT = "Tqt"


def learnt_reasoning(rendered: Rendered) -> tuple[str, str] | None:
    """Return the texts before and behind the reasoning of a turn; None: it is not written."""
    thought = Message("assistant", _SAID, reasoning=_THOUGHT)
    text = rendered((_ASK, thought), ChatOptions(add_generation_prompt=False)) or ""
    before, found, behind = text.rpartition(_THOUGHT)
    between, said, _ = behind.partition(_SAID)
    opens, closes = _OPENS.search(before), _CLOSES.match(between)
    if not (found and said and opens and closes):
        return None
    return opens[1], between.strip()


def takes_system(rendered: Rendered) -> bool:
    """True if the template writes what a message of the role system says."""
    text = rendered((Message("system", "Sqs"), _ASK), ChatOptions())
    return text is not None and "Sqs" in text


# --- rendering ---


def _render(rendered: Rendered, calls: tuple[ToolCall, ...], *, results: bool = True) -> str | None:
    made = Message("assistant", "", tool_calls=calls)
    answers = (Message("tool", "Rqr", name=each.name, tool_call_id=each.id) for each in calls)
    text = rendered((_ASK, made, *(answers if results else ())), _WITH_TOOLS)
    return text if text and "kqa" in text.rpartition(_ASK.content)[2] else None  # pyright: ignore[reportArgumentType]


def _turn(rendered: Rendered, reasoning: tuple[str, str] | None) -> _Turn | None:
    plain = rendered((_ASK, Message("assistant", _SAID)), _WITH_TOOLS)
    for calls in (_CALLS, _CALLS[:1]):
        for results in (False, True):
            text = _render(rendered, calls, results=results)
            if text is None or (len(calls) == 2 and "kqx" not in text):
                continue
            start, end = text.rfind("Uqu") + 3, ""
            if plain and _SAID in plain:
                before, _, end = plain.rpartition(_SAID)
                start = max(start, boundary(before, len(commonprefix([before, text]))))
            return _Turn(_without(text[start:].partition("Rqr")[0], reasoning), len(calls), end)
    return None


def _without(text: str, reasoning: tuple[str, str] | None) -> str:
    """Return the text without a reasoning of nothing, or marks around nothing, before it."""
    text = re.sub(r"\A<\|(\w+)_start\|><\|\1_end\|>", "", text)  # Llama 4
    if reasoning is None:
        return text
    opens, closes = (re.escape(mark.strip()) for mark in reasoning)
    return re.sub(rf"\A\s*(?:(?:{opens})?\s*{closes}\s*)", "", text)


# --- around the arguments ---


def _whole(turn: _Turn, body: FoundCall) -> CallForm | None:
    """Return the form with the texts around its calls."""
    text = turn.text
    opening = text[: body.name]
    only_id = not text.startswith(_FIRST, body.name)
    if turn.calls == 1:
        tail = text[body.end :]
        before = _slots(opening, _FIRST, _CALLS[0].id)
        tail = _slots(tail[: _end_of_turn(tail, turn.end)], _FIRST, _CALLS[0].id)
        form = replace(body.form, head=_head(before, only_id, body), tail=tail.rstrip(), one=True)
        return replace(form, between="; ") if form.head.startswith("{") else form  # Llama 3
    second = _second(text, body, only_id)
    if second is None:
        return None
    gap, neck, rest = second
    rest = _slots(rest[: _end_of_turn(rest, turn.end)], _SECOND, _CALLS[1].id)
    gap = _slots(_slots(gap, _FIRST, _CALLS[0].id), _SECOND, _CALLS[1].id)
    before = _slots(opening, _FIRST, _CALLS[0].id)
    before, gap, index = _indexed(before, gap)
    behind, _, numbered = _indexed(body.head, neck)
    body = body._replace(head=behind)
    index = max(index, numbered)
    head = shared_end(before, gap)
    gap = gap.removesuffix(head) if head else gap
    tail = shared_start(gap, rest).rstrip()
    return replace(
        body.form,
        begin=before.removesuffix(head) if head else before,
        head=_head(head, only_id, body),
        tail=tail,
        between=gap.removeprefix(tail),
        end=_ended(rest.removeprefix(tail), before.removesuffix(head) if head else before),
        first_index=index,
    )


def _second(text: str, body: FoundCall, only_id: bool) -> tuple[str, str, str] | None:
    """Return what stands between the arguments of the first call and the name of the second,
    between that and its arguments, and behind them."""
    key = text.find("kqx", body.end)
    name = _CALLS[1].id if only_id else _SECOND
    place = text.rfind(name, body.end, key)
    value = text.find("Vqx", key)
    if min(key, place, value) < 0:
        return None
    gap, start = text[body.end : place], place + len(name)
    neck = text[start : start + len(body.head)]
    form, behind = body.form, value + 3
    match form.arguments:
        case Arguments.JSON:
            with suppress(ValueError):
                _, behind = json.JSONDecoder().raw_decode(text, start + len(neck))
                return gap, neck, text[behind:]
            return None
        case Arguments.LOOSE:
            behind = text.find("}", value) + 1
        case Arguments.TAGS:
            behind += len(form.close) + len("kqx") + len(form.behind_key(""))
        case Arguments.PYTHON:
            behind += text[behind : behind + 1] in ("'", '"')
        case _:
            behind += form.quoted + len(form.close)
    return gap, neck, text[behind:]


def _head(before: str, only_id: bool, body: FoundCall) -> str:
    if only_id:
        return before + FUNCTIONS_ID + body.head
    return before + NAME + body.head.replace(_FIRST, NAME).replace(_CALLS[0].id, ID)


def _slots(text: str, name: str, id: str) -> str:
    return text.replace(name, NAME).replace(id, ID)


def _indexed(before: str, gap: str) -> tuple[str, str, int]:
    """Return the texts with the number of the call as a place, and the first call's number."""
    for first in (0, 1):
        one, two = (rf"(?<![\w.]){n}(?![\w.])" for n in (first, first + 1))
        if re.search(one, before) and re.search(two, gap):
            return re.sub(one, INDEX, before), re.sub(two, INDEX, gap), first
    return before, gap, 0


def _end_of_turn(text: str, end: str) -> int:
    """Return where the turn ends in the text behind its last call."""
    if end and text.endswith(end):
        return len(text) - len(end)
    if end.strip() and (place := text.find(end.strip())) >= 0:
        return place
    return len(text)


_PIECE = re.compile(r"<[^<>]*>|\[/?[A-Z][A-Z_]*\]|\[|\]|```\w*")


def _ended(text: str, begin: str) -> str:
    """Return of the text behind the last call what closes the beginning: as many pieces as that
    has. The rest ends the turn."""
    closing = list(_PIECE.finditer(text))[: len(_PIECE.findall(begin))]
    return text[: closing[-1].end()] if closing else ""


# --- what the whole tells ---


def _with_object(form: CallForm, text: str) -> CallForm:
    """Return the form of a call that is a JSON object with its name among the values."""
    if form.arguments != Arguments.JSON or "{" not in form.head:
        return form
    place = text.find("{", len(form.begin.replace(ID, "zq1234567").replace(INDEX, "0")))
    try:
        whole, _ = json.JSONDecoder().raw_decode(text, place)
    except ValueError:
        return form
    if not isinstance(whole, dict):
        return form
    call = cast("dict[str, Any]", whole)
    inner = call.get("function", call)
    keys = {repr(value): key for key, value in inner.items()} if isinstance(inner, dict) else {}
    name, arguments = keys.get(repr(_FIRST)), keys.get(repr(dict(VALUES)))
    if name is None or arguments is None:
        return form
    # A model that is not forced to write an id leaves it out, and so does a forced one.
    tail = re.sub(rf',\s*"[^"]*":\s*"{ID}"', "", form.tail)
    return replace(
        form,
        arguments=Arguments.OBJECT,
        name_key=name,
        arguments_key=arguments,
        tail=tail,
    )


_MARKS = re.compile(r'\]<\]\w+\[>\[<\w+>|<[^<>{}"]*>|<[\w:.|-]+[ =]|\[[A-Z][A-Z_]*\]|>>>')


def _mark(form: CallForm) -> str:
    opening = re.split(f"[{NAME}{ID}{INDEX}]", form.opening)[0]
    found = _MARKS.match(opening)
    return found[0] if found else ""
