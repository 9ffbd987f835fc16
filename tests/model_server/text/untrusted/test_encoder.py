"""Tokenizers of strangers are bounded when they are read, and encode within limits."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer
from sax.errors import CheckpointError, InvalidRequest, SaxError
from tests.each_case import each_case

LETTERS = {letter: place for place, letter in enumerate("abcdefgh")}


def serialized(pattern: str = "", **normalizer: Any) -> str:
    made = tokenizers.Tokenizer(models.BPE(LETTERS, [], unk_token="a"))
    made.decoder = decoders.ByteLevel()
    if pattern:
        made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    whole = json.loads(made.to_str())
    return json.dumps(whole | normalizer)


def grows(step: dict[str, Any], times: int) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": [step] * times}}


MANY = {"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 100}


@each_case(
    "source",
    [
        serialized(**grows(MANY, 5)),
        serialized(**grows({"type": "Prepend", "prepend": "b" * 10_000_000}, 1)),
        serialized(**grows(MANY | {"content": "q" * 500}, 1)),
    ],
)
def test_a_tokenizer_that_can_make_too_much_of_a_text_is_refused_before_it_does(
    source: str,
) -> None:
    with pytest.raises(CheckpointError, match="at most"):
        HfTokenizer(source)


def test_an_unknown_pattern_gives_the_ids_that_the_library_gives() -> None:
    strange = HfTokenizer(serialized(r"(?:a+b?)+|(c|d)*"))
    assert strange.waits
    assert not HfTokenizer(serialized(r"\s+")).waits
    assert not ByteTokenizer(256).waits
    plain = tokenizers.Tokenizer.from_str(serialized(r"(?:a+b?)+|(c|d)*"))
    for text in ("abacab", "", "cdcdxabba"):
        assert strange.encode(text) == plain.encode(text).ids
    assert to_encode(3, strange) > 2000


@pytest.mark.extended
def test_a_pattern_that_takes_for_ever_is_stopped_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = HfTokenizer(serialized(r"(a|a|ab?)*c|(a+)+(h)"))
    good = HfTokenizer(serialized(r"(?:a+b?)+"))
    threads, beats = EncodingThreads(), list[float]()

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def attack() -> None:
        beating = asyncio.create_task(beat())
        text = "a" * 60
        slow = asyncio.create_task(
            threads.run(to_encode(len(text), hostile), lambda: hostile.encode(text))
        )
        await asyncio.sleep(0.1)
        assert await threads.run(to_encode(2, good), lambda: good.encode("ab"))
        with pytest.raises(InvalidRequest, match="tokenizer .* on this text"):
            await slow
        beating.cancel()

    try:
        asyncio.run(attack())
    except SaxError:
        raise
    finally:
        threads.close()
    gaps = [after - before for before, after in zip(beats, beats[1:], strict=False)]
    assert max(gaps) < 1.0
