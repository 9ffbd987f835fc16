"""Fields that shape a reply, through a real cell: each one's effect on the demo model's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from sax import Client
from sax.types import GenerateRequest, ReplyOptions, SamplingParams
from tests.end_to_end.cell import SMOLLM2, Cell

START = "The capital of France is Paris. The capital of Italy is"
CHAT = [{"role": "user", "content": "What is the capital of France?"}]
SPECIAL = "<|im_end|>"


def ask(cell: Cell, **fields: Any) -> dict[str, Any]:
    """A completion of START, greedy unless the fields say otherwise."""
    chat = "messages" in fields
    body = {"model": SMOLLM2, "temperature": 0, "max_tokens": 4, **fields}
    if not chat:
        body = {"prompt": START, **body}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = httpx.post(cell.url + path, json=body, timeout=120)
    if answer.status_code != 200:
        return {"status": answer.status_code, **answer.json()["error"]}
    return answer.json()


def choice(cell: Cell, **fields: Any) -> dict[str, Any]:
    return ask(cell, **fields)["choices"][0]


def streamed(cell: Cell, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed completion."""
    body = {"model": SMOLLM2, "prompt": START, "temperature": 0, "max_tokens": 4, **fields}
    with httpx.stream(
        "POST", f"{cell.url}/v1/completions", json=body | {"stream": True}, timeout=120
    ) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines
    return [httpx.Response(200, text=line).json() for line in lines[:-1]]


def merged(events: list[dict[str, Any]]) -> dict[str, Any]:
    """One choice as the events tell it, piece by piece."""
    whole: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": {}}
    for event in events:
        for part in event["choices"]:
            whole["text"] += part.pop("text")
            whole["token_ids"] += part.pop("token_ids", [])
            for name, entries in (part.pop("logprobs") or {}).items():
                whole["logprobs"].setdefault(name, []).extend(entries)
            whole |= part
    return whole


def test_echo_and_logprobs_score_the_prompt_as_score_does(served: Cell) -> None:
    prefix, suffix = "The capital of France is Paris.", " The capital of Italy is"
    told = choice(served, prompt=prefix + suffix, echo=True, logprobs=2, max_tokens=0)
    listed = told["logprobs"]
    assert told["text"] == prefix + suffix == "".join(listed["tokens"])
    assert (listed["token_logprobs"][0], listed["top_logprobs"][0]) == (None, None)
    assert told["finish_reason"] == "length"
    first = listed["text_offset"].index(len(prefix))
    with Client(served.plan.admin_address) as client:
        sampling = SamplingParams(temperature=0.0, max_tokens=1)
        request = GenerateRequest(
            model_id=SMOLLM2,
            prompt=prefix + suffix,
            sampling=sampling,
            reply=ReplyOptions(prompt_logprobs=0),
        )
        entries = [entry for chunk in client.generate(request) for entry in chunk.prompt_logprobs]
    assert sum(entry.logprob for entry in entries[first:]) == pytest.approx(
        sum(listed["token_logprobs"][first:]), abs=1e-3
    )
    for logprob, top in list(zip(listed["token_logprobs"], listed["top_logprobs"], strict=True))[
        1:
    ]:
        assert logprob in top.values()
        assert len(top) in (2, 3)


def test_a_prompt_of_ids_is_scored_token_by_token_as_answers_of_one_token_are(served: Cell) -> None:
    """What lm-eval sends: lists of ids, scored. Each score is that of generating the token."""
    ids = choice(served, return_token_ids=True)["prompt_token_ids"][:6]
    told = choice(served, prompt=[ids], echo=True, logprobs=1, max_tokens=1)["logprobs"]
    for place in (1, 3, 5):
        alone = choice(
            served, prompt=ids[:place], max_tokens=1, logprobs=20, return_tokens_as_token_ids=True
        )["logprobs"]["top_logprobs"][0]
        if (name := f"token_id:{ids[place]}") in alone:
            assert told["token_logprobs"][place] == pytest.approx(alone[name], abs=0.05)
    assert len(told["tokens"]) == len(ids) + 1


def test_prompt_logprobs_are_listed_for_completions_and_chats(served: Cell) -> None:
    completion = choice(served, prompt_logprobs=2, return_token_ids=True)
    chat = ask(served, messages=CHAT, prompt_logprobs=2, return_token_ids=True)
    for told in (completion, chat):
        first, *others = told["prompt_logprobs"]
        assert first is None
        assert len(others) == len(told["prompt_token_ids"]) - 1
        for token, entries in zip(told["prompt_token_ids"][1:], others, strict=True):
            own = entries[str(token)]
            assert own["rank"] >= 1
            ranks = sorted(entry["rank"] for entry in entries.values())
            assert ranks[:2] == [1, 2]
            better = [e for e in entries.values() if e["logprob"] > own["logprob"]]
            assert len(better) <= own["rank"] - 1
    assert completion["text"] == choice(served)["text"]


def test_a_streamed_reply_is_the_whole_one_in_pieces(served: Cell) -> None:
    fields = {"echo": True, "logprobs": 2, "return_token_ids": True, "seed": 5, "temperature": 1}
    whole = choice(served, **fields)
    assert merged(streamed(served, **fields)) == whole


def test_the_seed_of_a_reply_gives_the_same_reply(served: Cell) -> None:
    """Most of the time: alone, bfloat16 steps round otherwise than in a batch of eight."""
    drawn = ask(served, n=8, temperature=1, max_tokens=4)["choices"]
    again = [choice(served, temperature=1, max_tokens=4, seed=each["seed"]) for each in drawn]
    assert [each["seed"] for each in again] == [each["seed"] for each in drawn]
    assert len({each["seed"] for each in drawn}) == 8
    assert sum(each["text"] == other["text"] for each, other in zip(again, drawn, strict=True)) > 4
    assert len({each["text"] for each in drawn}) > 4
    both = ask(served, n=2, temperature=1, seed=41)["choices"]
    assert [each["seed"] for each in both] == [41, 42]


def test_best_of_returns_the_answers_with_the_highest_mean_logprob(served: Cell) -> None:
    fields = {"temperature": 1.5, "max_tokens": 8, "seed": 3, "logprobs": 0}
    every = ask(served, n=4, **fields)["choices"]

    def mean(each: Mapping[str, Any]) -> float:
        logprobs = each["logprobs"]["token_logprobs"]
        return sum(logprobs) / len(logprobs)

    told = ask(served, n=2, best_of=4, **fields)
    best = sorted(every, key=mean, reverse=True)[:2]
    assert [each["text"] for each in told["choices"]] == [each["text"] for each in best]
    assert told["usage"]["completion_tokens"] > sum(
        len(each["logprobs"]["tokens"]) for each in told["choices"]
    )


def test_what_ended_an_answer_is_told_and_kept_on_request(served: Cell) -> None:
    assert choice(served, stop=["."], max_tokens=20)["stop_reason"] == "."
    kept = choice(served, stop=["."], max_tokens=20, include_stop_str_in_output=True)
    assert kept["text"] == choice(served, stop=["."], max_tokens=20)["text"] + "."
    ids = choice(served, return_token_ids=True)["token_ids"]
    ended = choice(served, stop_token_ids=[ids[1]])
    assert (ended["stop_reason"], ended["finish_reason"]) == (ids[1], "stop")


def test_control_tokens_show_on_request(served: Cell) -> None:
    fields: dict[str, Any] = {"messages": CHAT, "max_tokens": 40}
    shown = choice(served, skip_special_tokens=False, include_stop_str_in_output=True, **fields)[
        "message"
    ]["content"]
    hidden = choice(served, **fields)
    assert hidden["stop_reason"] is None
    assert shown == hidden["message"]["content"] + SPECIAL * (hidden["finish_reason"] == "stop")
    prompt = ask(served, return_token_ids=True, messages=CHAT)["prompt_token_ids"]
    echoed = choice(served, prompt=prompt, echo=True, max_tokens=0, skip_special_tokens=False)
    assert SPECIAL in echoed["text"]
    assert SPECIAL not in choice(served, prompt=prompt, echo=True, max_tokens=0)["text"]


def test_a_prompt_is_cut_from_the_left(served: Cell) -> None:
    ids = choice(served, return_token_ids=True)["prompt_token_ids"]
    cut = ask(served, truncate_prompt_tokens=3, return_token_ids=True, echo=True)
    assert cut["choices"][0]["prompt_token_ids"] == ids[-3:]
    assert cut["usage"]["prompt_tokens"] == 3
    long = "word " * 4000
    assert ask(served, prompt=long)["status"] == 400
    kept = ask(served, prompt=long, truncate_prompt_tokens=-1)
    assert kept["usage"]["prompt_tokens"] == 2048 - 4


def test_a_start_token_is_added_or_left_out(served: Cell) -> None:
    plain = choice(served, return_token_ids=True)["prompt_token_ids"]
    without = choice(served, return_token_ids=True, add_special_tokens=False)["prompt_token_ids"]
    assert plain[-len(without) :] == without


def test_every_event_counts_the_tokens_so_far(served: Cell) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = streamed(served, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert events[-1]["usage"] == last["usage"]


CONTRADICTIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"messages": CHAT, "echo": True}, "echo"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": CHAT, "max_tokens": 0}, "max_tokens"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": 99999}, "truncate_prompt_tokens"),
    ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
)


def test_a_contradiction_is_refused_by_name(served: Cell) -> None:
    told = [(fields, ask(served, **fields)) for fields, _ in CONTRADICTIONS]
    found = [(fields, (reply.get("status"), reply.get("param"))) for fields, reply in told]
    assert found == [(fields, (400, param)) for fields, param in CONTRADICTIONS]


def test_a_beam_search_gives_whole_answers_with_the_scores_of_their_tokens(served: Cell) -> None:
    """Their sums are those that scoring each answer's tokens behind the prompt gives."""
    search = {"use_beam_search": True, "n": 3, "length_penalty": 0.8, "max_tokens": 8}
    found = ask(served, **search, return_token_ids=True)
    assert len(found["choices"]) == 3
    scores = [each["score"] for each in found["choices"]]
    assert scores == sorted(scores, reverse=True)
    assert len({each["text"] for each in found["choices"]}) == 3
    for each in found["choices"]:
        assert each["finish_reason"] == "stop"
        prompt, answer = each["prompt_token_ids"], each["token_ids"]
        scored = choice(served, prompt=prompt + answer, echo=True, logprobs=0, max_tokens=0)
        total = sum(scored["logprobs"]["token_logprobs"][len(prompt) :])
        norm = ((len(answer) + 5) / 5) ** 0.8
        assert each["score"] == pytest.approx(total / norm, abs=0.1)
    assert ask(served, **search, stream=True)["param"] == "stream"
    assert ask(served, **search, top_p=0.5)["param"] == "top_p"
