"""Tokenizers of strangers are bounded by their steps as they are read, and encode within limits."""

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
from model_server.text.untrusted_encoder import are_known, check_growth
from model_server.text.vocabularies.cutting import CUTTINGS
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


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [*steps]}


DOUBLE = replace({"String": "a"}, "aa")


@each_case(
    "steps",
    [
        chain(*[DOUBLE] * 8),
        replace({"String": "a"}, "a" * 129),
        replace({"Regex": "x*"}, "a" * 200),
        chain(*[replace({"Regex": "(?=q)"}, "q")] * 8),
        chain({"type": "NFKC"}, *[DOUBLE] * 3),
        {"type": "Prepend", "prepend": "a" * 5000},
        chain({"type": "Prepend", "prepend": "a" * 100}, *[DOUBLE] * 6),
    ],
)
def test_steps_that_can_make_too_much_of_a_text_are_refused(steps: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="of one, and"):
        check_growth(steps, "normalizer")


@each_case(
    "steps",
    [
        None,
        chain(replace({"String": " "}, "\u2581"), {"type": "Prepend", "prepend": "\u2581"}),
        chain({"type": "NFKC"}, {"type": "Lowercase"}, replace({"Regex": " {2,}"}, " ")),
        chain(*[replace({"Regex": r"\s{2,}|[\t]"}, " ")] * 20),
        {"type": "BertNormalizer", "clean_text": True},
        {"type": "ByteLevel", "add_prefix_space": True},
        replace({"String": "a" * 100}, "b" * 9000),
    ],
)
def test_steps_of_usual_tokenizers_are_taken(steps: dict[str, Any] | None) -> None:
    check_growth(steps, "normalizer")


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


@each_case("name", CUTTINGS)
def test_patterns_of_families_are_known(name: str) -> None:
    assert are_known({"type": "Sequence", "pretokenizers": list(CUTTINGS[name].steps)})


@each_case(
    "pattern, known",
    [
        (r"\d", True),
        (r"[^\s\p{L}]+|\p{N}{1,3}", True),
        (r"\s+|[a-z]*", True),
        (r"(a+)+$", False),
        (r"a*a*b", False),
        (r"(?:a|a)*b", False),
        (r"a{1000}b{1000}", False),
    ],
)
def test_patterns_that_repeat_one_thing_are_known_and_others_not(pattern: str, known: bool) -> None:
    assert are_known({"type": "Sequence", "pretokenizers": [split(pattern)]}) == known
