"""The second turn of a chat computes only what is new, and says so."""

from __future__ import annotations

from typing import Any

from tests.end_to_end.cell import SMOLLM2, Cell

RULES = "You answer in one short sentence. " * 12


def asked(served: Cell, messages: list[dict[str, str]], **fields: str) -> dict[str, Any]:
    body = {"model": SMOLLM2, "messages": messages, "max_tokens": 12, "temperature": 0, **fields}
    reply = served.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def cached(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def text(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"]


def test_a_second_turn_finds_the_first(served: Cell) -> None:
    chat = [{"role": "system", "content": RULES}, {"role": "user", "content": "Name a colour."}]
    first = asked(served, chat)
    hits = served.metric("sax_prefix_cache_hits_total")
    chat += [{"role": "assistant", "content": text(first)}]
    chat += [{"role": "user", "content": "And another one."}]
    second = asked(served, chat)
    assert cached(second) > 0.7 * first["usage"]["prompt_tokens"]
    assert served.metric("sax_prefix_cache_hits_total") == hits + cached(second)
    salted = asked(served, chat, cache_salt="of another")
    assert cached(salted) == 0
    again = asked(served, chat, cache_salt="of another")
    assert cached(again) == again["usage"]["prompt_tokens"] - 1
    assert text(salted) == text(again)
