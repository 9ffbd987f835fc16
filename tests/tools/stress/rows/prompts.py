"""Prompts and other fields that cost more to read than to answer."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.tools.stress.row import row

BODY = 7_800_000  # bytes, within the gateway's default limit


def refusals(cell: Cell, path: str, body: bytes, count: int = 5) -> tuple[list[str], float]:
    """The texts of so many refusals, and the seconds of each."""
    began_s = time.monotonic()
    replies = [httpx.post(cell.url + path, content=body, timeout=60) for _ in range(count)]
    took_s = (time.monotonic() - began_s) / count
    assert {reply.status_code for reply in replies} == {400}, replies[0].text[:300]
    return [reply.json()["error"]["message"] for reply in replies], took_s


def completion(fields: bytes) -> bytes:
    return b'{"model": "%s", "max_tokens": 4, %s}' % (SMOLLM2.encode(), fields)


@row("a prompt of 7.8 MB, five at once")
def long_prompts(cell: Cell) -> str:
    prompt = b"once upon a time " * (BODY // 17)
    texts, took_s = refusals(cell, "/v1/completions", completion(b'"prompt": "%s"' % prompt))
    assert all(text.startswith("prompt has ") for text in texts), texts[0][:300]
    return f"400 with size and bound in {took_s:.2f} s each"


@row("prompts of 1 MB, ten at once, beside short ones")
def megabyte_prompts(cell: Cell) -> str:
    """Within the gateway's bound: the model server refuses them."""
    body = completion(b'"prompt": "%s"' % (b"once upon a time " * 60_000))
    longest_s = 0.0
    with ThreadPoolExecutor(10) as pool:
        began = [pool.submit(refusals, cell, "/v1/completions", body, 2) for _ in range(10)]
        while not all(future.done() for future in began):
            began_s = time.monotonic()
            assert cell.complete("Hi", max_tokens=1).status_code == 200
            longest_s = max(longest_s, time.monotonic() - began_s)
        texts = [text for future in began for text in future.result()[0]]
    assert all("context of 2048 tokens" in text for text in texts), texts[0][:300]
    return f"400 with size and bound; a short request beside them took {longest_s:.2f} s at most"


@row("prompts of 300 KB that are too long by tokens only")
def prompts_of_many_tokens(cell: Cell) -> str:
    body = completion(b'"prompt": "%s"' % (b"once upon a time " * 18_000))
    texts, took_s = refusals(cell, "/v1/completions", body, 10)
    assert all("context length is 2048" in text for text in texts), texts[0][:300]
    return f"400 in {took_s:.2f} s each"


@row("a stop string of 7.8 MB for eight choices")
def long_stop(cell: Cell) -> str:
    body = completion(b'"prompt": "Hi", "n": 8, "stop": "%s"' % (b"a" * BODY))
    texts, took_s = refusals(cell, "/v1/completions", body)
    assert all("stop has 7800000 bytes; at most 1024" in text for text in texts), texts[0][:300]
    return f"400 with size and bound in {took_s:.2f} s each"


@row("a stop list of 3.9 million numbers")
def many_stops(cell: Cell) -> str:
    body = completion(b'"prompt": "Hi", "stop": [%s1]' % (b"1," * (BODY // 2)))
    _, took_s = refusals(cell, "/v1/completions", body, 3)
    return f"400 in {took_s:.2f} s each"


@row("230,000 empty messages")
def empty_messages(cell: Cell) -> str:
    turn = b'{"role":"user","content":""}'
    turns = (turn + b",") * 229_999 + turn
    body = b'{"model": "%s", "messages": [%s]}' % (SMOLLM2.encode(), turns)
    _, took_s = refusals(cell, "/v1/chat/completions", body)
    return f"400 in {took_s:.2f} s each"


@row("4,000 empty messages, which the gateway lets pass")
def some_empty_messages(cell: Cell) -> str:
    turn = b'{"role":"user","content":""}'
    body = b'{"model": "%s", "messages": [%s]}' % (
        SMOLLM2.encode(),
        (turn + b",") * 3_999 + turn,
    )
    texts, took_s = refusals(cell, "/v1/chat/completions", body, 10)
    assert all("context" in text for text in texts), texts[0][:300]
    return f"400 in {took_s:.2f} s each"


@row("a model name of 7.8 MB")
def long_model(cell: Cell) -> str:
    body = b'{"model": "%s", "prompt": "Hi"}' % (b"m" * BODY)
    texts, took_s = refusals(cell, "/v1/completions", body)
    assert all("model has 7800000 bytes; at most 200" in text for text in texts)
    return f"400 with size and bound in {took_s:.2f} s each"


@row("a field name of 7.8 MB")
def long_field_name(cell: Cell) -> str:
    texts, took_s = refusals(
        cell, "/v1/completions", completion(b'"prompt": "Hi", "%s": 1' % (b"f" * BODY))
    )
    assert max(map(len, texts)) < 400
    return f"400 in {took_s:.2f} s each, {max(map(len, texts))} characters of reply"
