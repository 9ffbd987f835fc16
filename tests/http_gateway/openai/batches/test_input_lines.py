from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.batches import input_lines
from http_gateway.openai.batches.input_lines import check_lines, lines_of
from tests.virtual_loop import run


async def content(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@given(
    text=st.binary(max_size=60).map(lambda data: data.replace(b"\r", b"\n").replace(b"a", b"\n")),
    cuts=st.sets(st.integers(0, 60)),
)
def test_where_the_content_is_cut_does_not_change_its_lines(text: bytes, cuts: set[int]):
    marks = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in zip(marks, marks[1:], strict=False)]

    async def read() -> list[tuple[int, bytes]]:
        return [line async for line in lines_of(content(*pieces))]

    wanted = [(n, line) for n, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    assert run(read()) == wanted


async def test_a_line_too_long_to_hold_is_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_lines, "LINE_BYTES", 100)
    total, (fault,) = await check_lines(content(b"x" * 60, b"x" * 60), "/v1/completions")
    assert (total, fault.code, fault.line) == (0, "line_too_long", 1)


async def test_too_many_lines_are_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_lines, "MOST_LINES", 2)
    line = b'{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    _, faults = await check_lines(content(*(line % n for n in range(3))), "/v1/completions")
    assert [fault.code for fault in faults] == ["too_many_lines"]
    total, faults = await check_lines(content(*(line % n for n in range(2))), "/v1/completions")
    assert (total, faults) == (2, [])


async def test_no_more_faults_are_told_than_anyone_reads():
    _, faults = await check_lines(content(b"x\n" * 500), "/v1/completions")
    assert len(faults) == 100
