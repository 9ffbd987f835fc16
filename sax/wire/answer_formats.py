"""How an answer is divided, on the wire: the forms of calls and reasoning."""

from __future__ import annotations

import msgspec

from sax import call_form
from sax.chat import AnswerFormat
from sax.proto import tokens_pb2

_Kinds = dict[str, dict[str, list[str]]]


def put_answer_format(msg: tokens_pb2.AnswerFormat, format: AnswerFormat) -> None:
    msg.tools, msg.reasoning = format.tools, format.reasoning
    msg.reasoning_open, msg.generic = format.reasoning_open, format.generic
    if format.calls is not None:
        msg.calls = call_form.encoded(format.calls)
    if format.kinds:
        msg.kinds = msgspec.json.encode(format.kinds).decode()
    if format.thoughts is not None:
        msg.reasoning_begin, msg.reasoning_end = format.thoughts


def decode_answer_format(msg: tokens_pb2.AnswerFormat) -> AnswerFormat:
    return AnswerFormat(
        msg.tools,
        msg.reasoning,
        msg.reasoning_open,
        call_form.decoded(msg.calls) if msg.calls else None,
        msgspec.json.decode(msg.kinds, type=_Kinds) if msg.kinds else {},
        (msg.reasoning_begin, msg.reasoning_end) if msg.reasoning_end else None,
        msg.generic,
    )
