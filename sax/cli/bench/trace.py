"""Traces: requests that were recorded, one JSON object a line, to be sent again in their rhythm.

{"timestamp": 0, "input_length": 6500, "output_length": 300, "hash_ids": [46, 47]}

`timestamp` is in milliseconds. Prompts that begin with the same `hash_ids` have those blocks of 512
tokens in common: the format of Mooncake's published traces. A line may have its `prompt` itself
instead of `input_length`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sax.cli.bench.workload import WORDS, PlannedRequest, drawn
from sax.errors import InvalidRequest

BLOCK = 512  # tokens that one of `hash_ids` stands for
_MOST = 1 << 24  # tokens of a line


class TraceLine(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One recorded request."""

    timestamp: float
    output_length: int
    input_length: int | None = None
    prompt: str | None = None
    hash_ids: list[int] = []


def read_trace(lines: Iterable[str | bytes], seed: int, speed: float = 1.0) -> list[PlannedRequest]:
    """Read the requests of a trace, sent `speed` times as fast as they were recorded.

    The first is sent at once. Raises InvalidRequest, which names the line.
    """
    found = [_line(text, number) for number, text in enumerate(lines, 1) if text.strip()]
    if not found:
        raise InvalidRequest("the trace has no lines", param="trace")
    begin = min(each.timestamp for each in found)
    made = [
        PlannedRequest(
            _prompt(each, seed, number), each.output_length, (each.timestamp - begin) / 1e3 / speed
        )
        for number, each in enumerate(found)
    ]
    return sorted(made, key=lambda request: request.at_s or 0.0)


def _line(text: str | bytes, number: int) -> TraceLine:
    try:
        line = msgspec.json.decode(text, type=TraceLine)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"line {number} of the trace: {error}", param="trace") from None
    if wrong := _wrong(line):
        raise InvalidRequest(f"line {number} of the trace: {wrong}", param="trace")
    return line


def _wrong(line: TraceLine) -> str:
    if (line.input_length is None) == (line.prompt is None):
        return "give input_length or prompt, one of them"
    if line.prompt is not None and line.hash_ids:
        return "hash_ids stand for a prompt that is not given"
    if not 1 <= line.output_length <= _MOST:
        return f"output_length is {line.output_length}: give 1 to {_MOST}"
    if line.input_length is not None and not 1 <= line.input_length <= _MOST:
        return f"input_length is {line.input_length}: give 1 to {_MOST}"
    return ""


def _prompt(line: TraceLine, seed: int, number: int) -> str:
    if line.prompt is not None:
        return line.prompt
    length = line.input_length or 0
    words = _blocks(line.hash_ids, length, seed)
    return " ".join([*words, *drawn(WORDS, length - len(words), f"{seed}, {number}")])


def _blocks(ids: Sequence[int], length: int, seed: int) -> list[str]:
    needed = ids[: -(-length // BLOCK)]
    words = [word for each in needed for word in drawn(WORDS, BLOCK, f"{seed}, block {each}")]
    return words[:length]
