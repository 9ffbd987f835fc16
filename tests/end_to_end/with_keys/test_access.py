"""Tokens on all three processes: who is answered, who is not, and lists that change in place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from sax.auth.key_limits import KeyLimits
from sax.auth.token_file import new_token
from sax.cli.local.cell_plan import GATEWAY
from sax.cli.local.server_plan import MODEL_SERVER
from tests.end_to_end.cell import Cell
from tests.end_to_end.small_model import MODEL, PATH
from tests.identities import Identities

NAME = MODEL.rpartition("/")[2]


def complete(cell: Cell, key: str, **fields: Any) -> str:
    """What an OpenAI client with this key gets."""
    settings = {"max_tokens": 4, "temperature": 0, **fields}
    with OpenAI(base_url=f"{cell.url}/v1", api_key=key, max_retries=0) as client:
        return client.completions.create(model=NAME, prompt="hi", **settings).choices[0].text


def loads(cell: Cell) -> int:
    return cell.log(MODEL_SERVER).count("loading completed")


def test_strangers_are_turned_away_by_every_process(guarded: Cell, people: Identities) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        complete(guarded, "sk-anything")
    assert refused.value.code == "invalid_api_key"
    for words in (("ls",), ("generate", MODEL, "hi")):
        result = guarded.sax(*words, token="sax_withdrawn")
        assert (result.returncode, result.stdout) == (1, "")
        assert "token is not valid" in result.stderr


def test_a_key_with_limits_is_charged_for_what_the_model_server_counted(
    guarded: Cell, people: Identities
) -> None:
    people.tokens["carol"] = new_token()
    people.limits["carol"] = KeyLimits(rpm=3, tpm=60, models=(NAME,))
    people.write()
    headers = people.headers("carol") | {"x-request-id": "limits-1"}
    short = {"per_example_max_decode_steps": 4}
    for path, body in (
        ("/v1/completions", {"model": NAME, "prompt": "hello", "max_tokens": 4}),
        ("/generate", {"model": MODEL, "query": "hello", "extra_inputs": short}),
        ("/v1/completions", {"model": MODEL, "prompt": "hi", "max_tokens": 4, "stream": True}),
    ):
        answer = guarded.http.post(path, json=body, headers=headers)
    asked = 3
    while answer.status_code == 200:  # one comes back every twenty seconds
        query = {"model": MODEL, "query": "hello", "extra_inputs": short}
        answer = guarded.http.post("/generate", json=query, headers=headers)
        asked += 1
    assert (answer.status_code, "carol is limited to 3" in answer.text) == (429, True)

    def logged() -> list[str]:
        return [line for line in guarded.log(GATEWAY).splitlines() if " key=carol " in line]

    # A line is written once the last byte of its reply was.
    guarded.eventually(lambda: len(logged()) == asked, "every request has its line")
    lines = logged()
    told = [re.findall(r"status=(\d+)|_tokens=([1-9])", line) for line in lines]
    # In any order: that of a stream may come behind the refusal of the next request.
    assert sorted([status or "tokens" for status, _ in line] for line in told) == [
        *[["200", "tokens", "tokens"]] * (asked - 1),
        ["429"],
    ]
    answered = [line for line in lines if " status=200 " in line]
    assert len(answered) == asked - 1
    assert all(f" model={MODEL} " in line for line in answered)
    assert all(line.endswith("request_id=limits-1") for line in lines)
    del people.tokens["carol"]
    people.write()


def test_lists_change_in_place_and_are_in_force_for_every_user(
    guarded: Cell, people: Identities
) -> None:
    before = loads(guarded)
    alice, bob = people.tokens["alice"], people.tokens["bob"]
    text = complete(guarded, alice)
    assert complete(guarded, bob) == text
    changed = guarded.sax("setacl", MODEL, "lm.generate", "alice")
    assert changed.returncode == 0, changed.stderr

    def shut_out() -> bool:
        try:
            complete(guarded, bob)
        except openai.PermissionDeniedError as refused:
            return "bob may not call lm.generate_stream" in refused.message
        return False

    guarded.eventually(shut_out, "bob is shut out")
    assert complete(guarded, alice) == text
    with pytest.raises(openai.PermissionDeniedError):
        complete(guarded, bob, stream=True)
    saxml = {"model": MODEL, "query": "hi"}
    for who, status in (("alice", 200), ("bob", 403), ("ops", 403)):
        reply = guarded.http.post("/generate", json=saxml, headers=people.headers(who))
        assert reply.status_code == status, reply.text
    assert loads(guarded) == before
    assert guarded.sax("setacl", MODEL, "lm.generate", "").returncode == 0
    guarded.eventually(lambda: not shut_out(), "everybody is answered again")


def test_only_the_operator_publishes_whatever_the_way(guarded: Cell, people: Identities) -> None:
    body = {"model": "/sax/test/new", "model_path": PATH, "checkpoint": "None", "replicas": 0}
    refused = guarded.http.post("/publish", json=body, headers=people.headers("alice"))
    assert refused.status_code == 403
    assert "alice may not publish" in refused.json()["detail"]
    allowed = guarded.http.post("/publish", json=body, headers=people.headers("ops"))
    assert allowed.status_code == 200, allowed.text
    for words in (("unpublish", MODEL), ("setacl", MODEL, "alice")):
        result = guarded.sax(*words, token=people.tokens["alice"])
        assert result.returncode == 1
        assert "alice may not" in result.stderr
    assert guarded.sax("unpublish", body["model"]).returncode == 0


def test_a_token_that_is_withdrawn_opens_nothing_from_then_on(
    guarded: Cell, people: Identities, tmp_path: Path
) -> None:
    key = people.tokens["alice"]
    try:
        del people.tokens["alice"]
        people.write()
        with pytest.raises(openai.AuthenticationError):
            complete(guarded, key)
    finally:
        people.tokens["alice"] = key
        people.write()
    assert complete(guarded, key)
