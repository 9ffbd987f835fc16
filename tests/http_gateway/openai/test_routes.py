"""OpenAI's routes over the fake cell: a prompt of size s answers the numbers s, s+1, ..., s+4."""

import asyncio
import json
import re
from dataclasses import replace

import httpx
import pytest

from http_gateway.openai.model_list import model_card
from http_gateway.openai.routes import fan_out
from sax.errors import (
    AdminUnavailable,
    DeadlineExceeded,
    ModelNotReady,
    PromptTooLong,
    QueueFull,
    ReplicaLost,
    SaxError,
)
from sax.types import GenerateRequest, Message, ModelSpec, PublishedModel, SamplingParams
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell, published

CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "abc"}]}
COMPLETION = {"model": "smollm2", "prompt": "abcd"}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def events(answer: httpx.Response) -> list[dict[str, object]]:
    """The events of a whole stream, which must end with [DONE]."""
    assert answer.status_code == 200
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def scrub(text: str) -> str:
    """Without the two values that differ from call to call."""
    return re.sub(r'"created":\d+', '"created":0', re.sub(r"-[0-9a-f]{32}", "-ID", text))


async def test_a_chat_is_answered_byte_for_byte(cell: FakeCell, http: httpx.AsyncClient):
    answer = await http.post(CHATS, json=CHAT)
    assert answer.headers["content-type"] == "application/json"
    assert scrub(answer.text) == (
        '{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"smollm2",'
        '"system_fingerprint":null,"choices":[{"index":0,"message":{"role":"assistant",'
        '"content":" 3 4 5 6 7","refusal":null},"logprobs":null,"finish_reason":"stop",'
        '"stop_reason":null,"seed":null}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,'
        '"prompt_tokens_details":{"cached_tokens":0}}}'
    )
    asked = cell.requests[0]
    assert (asked.model_id, asked.prompt) == ("/sax/test/smollm2", (Message("user", "abc"),))
    sent = answer.headers["x-request-id"]
    assert asked.request_id == f"{sent}/{answer.json()['id']}-0"


@pytest.mark.extended
async def test_a_chat_is_streamed_byte_for_byte(http: httpx.AsyncClient):
    body = {**CHAT, "stream": True, "max_tokens": 1, "stream_options": {"include_usage": True}}
    answer = await http.post(CHATS, json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    head = (
        'data: {"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,'
        '"model":"smollm2","system_fingerprint":null,"choices":['
    )
    choices = [
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        '{"index":0,"delta":{"content":" 3"},"logprobs":null,"finish_reason":null}',
        '{"index":0,"delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        '"seed":null}',
    ]
    usage = (
        '"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,'
        '"prompt_tokens_details":{"cached_tokens":0}}}'
    )
    assert scrub(answer.text).split("\n\n") == [
        *(f'{head}{choice}],"usage":null}}' for choice in choices),
        f"{head}],{usage}",
        "data: [DONE]",
        "",
    ]


async def test_a_stream_without_include_usage_has_no_usage(http: httpx.AsyncClient):
    told = events(await http.post(CHATS, json={**CHAT, "stream": True}))
    assert not any("usage" in event for event in told)
    assert all(event["choices"] for event in told)


async def test_a_completion_is_answered_byte_for_byte(http: httpx.AsyncClient):
    answer = await http.post(COMPLETIONS, json={**COMPLETION, "max_tokens": 2, "logprobs": 1})
    assert scrub(answer.text) == (
        '{"id":"cmpl-ID","object":"text_completion","created":0,"model":"smollm2",'
        '"system_fingerprint":null,"choices":[{"index":0,"text":" 4 5","logprobs":'
        '{"tokens":[" 4"," 5"],"token_logprobs":[-0.5,-0.625],'
        '"top_logprobs":[{" 4":-0.5},{" 5":-0.625}],"text_offset":[0,2]},'
        '"finish_reason":"length","stop_reason":null,"seed":null}],'
        '"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6,'
        '"prompt_tokens_details":{"cached_tokens":0}}}'
    )


async def test_a_completion_is_streamed_byte_for_byte(http: httpx.AsyncClient):
    answer = await http.post(COMPLETIONS, json={**COMPLETION, "max_tokens": 2, "stream": True})
    head = (
        'data: {"id":"cmpl-ID","object":"text_completion","created":0,"model":"smollm2",'
        '"system_fingerprint":null,"choices":['
    )
    assert scrub(answer.text) == (
        head + '{"index":0,"text":" 4","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '{"index":0,"text":" 5","logprobs":null,"finish_reason":"length",'
        '"stop_reason":null,"seed":null}]}\n\n'
        "data: [DONE]\n\n"
    )  # fmt: skip


async def test_n_choices_have_distinct_seeds_and_their_own_index(
    cell: FakeCell, http: httpx.AsyncClient
):
    answer = (await http.post(CHATS, json={**CHAT, "n": 3, "seed": 100, "max_tokens": 2})).json()
    assert [(one["index"], one["message"]["content"]) for one in answer["choices"]] == [
        (0, " 103 104"),
        (1, " 104 105"),
        (2, " 105 106"),
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len({asked.request_id for asked in cell.requests}) == 3


async def test_n_choices_are_streamed_with_their_own_index(http: httpx.AsyncClient):
    body = {**CHAT, "n": 2, "seed": 1, "stream": True, "stream_options": {"include_usage": True}}
    told = events(await http.post(CHATS, json=body))
    text = {0: "", 1: ""}
    roles, reasons = list[object](), list[object]()
    for event in told[:-1]:
        [choice] = event["choices"]  # pyright: ignore[reportGeneralTypeIssues]
        text[choice["index"]] += choice["delta"].get("content", "")
        roles.append(choice["delta"].get("role"))
        reasons.append(choice["finish_reason"])
    assert text == {0: " 4 5 6 7 8", 1: " 5 6 7 8 9"}
    assert (roles.count("assistant"), reasons.count("stop")) == (2, 2)
    assert told[-1]["choices"] == []
    assert told[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 10,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@each_case(
    "prompt, texts",
    [
        ("abcd", [" 4"]),
        (["a", "abc"], [" 1", " 3"]),
        ([5, 6, 7], [" 3"]),
        ([[5, 6, 7], [8]], [" 3", " 1"]),
    ],
)
async def test_every_form_of_prompt_is_answered_in_order(
    prompt: object, texts: list[str], http: httpx.AsyncClient
):
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 1}
    answer = (await http.post(COMPLETIONS, json=body)).json()
    assert [choice["text"] for choice in answer["choices"]] == texts


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(http: httpx.AsyncClient):
    body = {"model": "smollm2", "prompt": ["a", "abc"], "n": 2, "seed": 10, "max_tokens": 1}
    answer = (await http.post(COMPLETIONS, json=body)).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [
        (0, " 11"),
        (1, " 12"),
        (2, " 13"),
        (3, " 14"),
    ]
    assert answer["usage"]["prompt_tokens"] == 4


def test_seeds_wrap_around_and_no_seed_stays_none():
    last = 2**64 - 1

    def asks(seed: int | None) -> GenerateRequest:
        sampling = SamplingParams(seed=seed)
        return GenerateRequest(
            model_id="/sax/test/m", prompt="", sampling=sampling, request_id="id"
        )

    asked = fan_out(asks(last), ("a", "b"), 2)
    assert [one.sampling.seed for one in asked] == [last, 0, last, 0]
    assert [one.request_id for one in asked] == ["id-0", "id-1", "id-2", "id-3"]
    assert [one.sampling.seed for one in fan_out(asks(None), ("a",), 2)] == [None, None]


async def test_chat_logprobs_are_streamed_with_their_tokens(http: httpx.AsyncClient):
    body = {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2, "max_tokens": 1}
    told = events(await http.post(CHATS, json=body))
    [choice] = told[1]["choices"]  # pyright: ignore[reportGeneralTypeIssues]
    assert choice["logprobs"]["content"] == [
        {
            "token": " 3",
            "logprob": -0.375,
            "bytes": [32, 51],
            "top_logprobs": [
                {"token": " 3", "logprob": -0.375, "bytes": [32, 51]},
                {"token": " 4", "logprob": -0.5, "bytes": [32, 52]},
            ],
        }
    ]


async def test_models_are_listed_by_their_full_names(cell: FakeCell, http: httpx.AsyncClient):
    llama = cell.models["/sax/test/llama"]
    cell.models["/sax/test/llama"] = replace(llama, published_at_s=1764352000.5)
    answer = await http.get("/v1/models")
    card = {"object": "model", "created": 0, "owned_by": "sax", "replicas": 1, "ready_replicas": 1}
    assert answer.json() == {
        "object": "list",
        "data": [
            {"id": "/sax/test/smollm2", **card},
            {"id": "/sax/test/llama", **card, "created": 1764352000},
        ],
    }


def test_a_model_tells_its_context_once_a_replica_is_ready():
    spec = ModelSpec(model_id="/sax/test/a", model_path="auto", checkpoint="/a", replicas=1)
    assert model_card(PublishedModel(spec=spec, max_context=2048))["max_model_len"] == 2048
    assert "max_model_len" not in model_card(PublishedModel(spec=spec))


def test_an_adapter_names_its_base_as_parent():
    base = "/sax/test/smollm2"
    adapter = ModelSpec(
        model_id="/sax/test/mine",
        model_path="lora",
        checkpoint="/adapters/mine",
        replicas=1,
        overrides={"BASE": json.dumps(base)},
    )
    assert model_card(PublishedModel(spec=adapter))["parent"] == base
    assert "parent" not in model_card(PublishedModel(spec=replace(adapter, model_path="llama")))


@pytest.mark.parametrize("name", ["llama", "/sax/test/llama", "%2Fsax%2Ftest%2Fllama"])
async def test_a_model_is_told_by_either_name(http: httpx.AsyncClient, name: str):
    answer = await http.get(f"/v1/models/{name}")
    assert answer.json()["id"] == "/sax/test/llama"


@pytest.mark.parametrize("name", ["smollm2", "/sax/test/smollm2"])
async def test_a_reply_echoes_the_model_as_it_was_asked_for(http: httpx.AsyncClient, name: str):
    answer = await http.post(CHATS, json={**CHAT, "model": name})
    assert answer.json()["model"] == name


def error_of(answer: httpx.Response) -> dict[str, object]:
    assert list(answer.json()) == ["error"]
    assert list(answer.json()["error"]) == ["message", "type", "param", "code"]
    return answer.json()["error"]


@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
async def test_an_unknown_model_is_a_404_with_the_nearest_names(http: httpx.AsyncClient, path: str):
    body = {**(CHAT if path == CHATS else COMPLETION), "model": "smolm2"}
    answer = await http.post(path, json=body)
    assert answer.status_code == 404
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "/sax/test/smollm2" in str(error["message"])


async def test_an_ambiguous_model_is_a_400_that_lists_the_candidates(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.models["/sax/other/smollm2"] = published("/sax/other/smollm2")
    answer = await http.post(CHATS, json=CHAT)
    assert answer.status_code == 400
    assert "/sax/test/smollm2, /sax/other/smollm2" in str(error_of(answer)["message"])


@each_case("stream", [False, True])
@each_case("failure, status, code, retry_after", [
    (PromptTooLong("5000 tokens > 4096", param="messages"), 400, "context_length_exceeded",
     None),
    (QueueFull("full", retry_after_s=3), 429, "rate_limit_exceeded", "3"),
    (ModelNotReady("compiling bucket 3 of 8", retry_after_s=2), 503, "model_not_ready", "2"),
    (ReplicaLost("gone"), 503, "replica_lost", "1"),
])  # fmt: skip
async def test_an_error_before_the_first_token_has_its_own_status_streamed_or_not(
    failure: SaxError,
    status: int,
    code: str,
    retry_after: str | None,
    stream: bool,
    cell: FakeCell,
    http: httpx.AsyncClient,
):
    cell.failure = failure
    answer = await http.post(CHATS, json={**CHAT, "stream": stream, "n": 2})
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert error_of(answer)["message"] == failure.text
    assert answer.headers.get("retry-after") == retry_after
    assert cell.open_answers == 0


async def test_an_error_after_the_first_token_is_the_last_event_and_there_is_no_done(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.failure, cell.fail_at = ReplicaLost("127.0.0.1:1 is gone"), 2
    answer = await http.post(CHATS, json={**CHAT, "stream": True})
    lines = answer.text.split("\n\n")
    assert answer.status_code == 200
    assert json.loads(lines[-2].removeprefix("data: ")) == {
        "error": {
            "message": "127.0.0.1:1 is gone",
            "type": "server_error",
            "param": None,
            "code": "replica_lost",
        }
    }
    assert "[DONE]" not in answer.text
    assert " 4" in answer.text
    labels = f'model="/sax/test/smollm2",route="{CHATS}"'
    assert f"sax_gateway_broken_streams_total{{{labels}}} 1.0" in (await http.get("/metrics")).text


async def test_an_answer_that_ends_without_a_reason_is_an_error_streamed_or_not(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.cut_short = True
    whole = await http.post(CHATS, json=CHAT)
    assert (whole.status_code, error_of(whole)["code"]) == (503, "replica_lost")
    streamed = await http.post(CHATS, json={**CHAT, "stream": True})
    assert '"code":"replica_lost"' in streamed.text
    assert "[DONE]" not in streamed.text


async def test_an_error_of_one_choice_ends_them_all(cell: FakeCell, http: httpx.AsyncClient):
    cell.failure, cell.fail_at = ReplicaLost("gone"), 1
    answer = await http.post(CHATS, json={**CHAT, "n": 4})
    assert (answer.status_code, cell.open_answers) == (503, 0)


@each_case(
    "path, fields, param",
    [
        (CHATS, {"tools": [{"type": "mcp"}]}, "tools[0].type"),
        (CHATS, {"functions": [{"name": "f"}]}, "functions"),
        (CHATS, {"no_such": 1}, "no_such"),
        (CHATS, {"echo": True}, "echo"),
    ],
)
async def test_an_unsupported_field_is_a_400_that_names_it(
    path: str, fields: dict[str, object], param: str, cell: FakeCell, http: httpx.AsyncClient
):
    body = {**(CHAT if path == CHATS else COMPLETION), **fields}
    answer = await http.post(path, json=body)
    error = error_of(answer)
    assert answer.status_code == 400
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        param,
        "unsupported_parameter",
    )
    assert cell.requests == []


@each_case(
    "body, param",
    [
        ({**CHAT, "n": 9}, "n"),
        ({**CHAT, "temperature": "hot"}, "temperature"),
        ({"model": "smollm2"}, "messages"),
        ({**CHAT, "messages": [{"role": 5}]}, "messages[0].role"),
        ([], None),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(
    body: object, param: str | None, http: httpx.AsyncClient
):
    answer = await http.post(CHATS, json=body)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)


async def test_malformed_json_is_a_400(http: httpx.AsyncClient):
    answer = await http.post(CHATS, content=b'{"model": "smollm2", ')
    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")


async def test_requests_go_on_while_the_admin_is_away(cell: FakeCell, http: httpx.AsyncClient):
    assert (await http.post(CHATS, json=CHAT)).status_code == 200
    cell.admin_failure = AdminUnavailable("the admin is away")
    assert (await http.post(CHATS, json=CHAT)).status_code == 200
    assert (await http.get("/v1/models")).status_code == 503


async def test_tokens_and_the_wait_for_the_first_are_counted(http: httpx.AsyncClient):
    await http.post(CHATS, json=CHAT)
    await http.post(CHATS, json={**CHAT, "stream": True, "n": 2})
    text = (await http.get("/metrics")).text
    model = 'model="/sax/test/smollm2"'
    assert f"sax_gateway_prompt_tokens_total{{{model}}} 6.0" in text
    assert f"sax_gateway_completion_tokens_total{{{model}}} 15.0" in text
    route = f'route="{CHATS}"'
    assert f"sax_gateway_time_to_first_token_seconds_count{{{model},{route}}} 2.0" in text


async def test_answers_do_not_wait_for_each_other(cell: FakeCell, http: httpx.AsyncClient):
    cell.hold_after = 1
    asked = [asyncio.create_task(http.post(CHATS, json=CHAT)) for _ in range(3)]
    for _ in range(3):
        await cell.opened.get()
    cell.released.set()
    assert [one.status_code for one in await asyncio.gather(*asked)] == [200, 200, 200]


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHATS, CHAT), (COMPLETIONS, COMPLETION), (CHATS, {**CHAT, "stream": True})],
)
async def test_a_time_limit_of_body_or_header_goes_with_the_request(
    cell: FakeCell, http: httpx.AsyncClient, path: str, body: dict[str, object]
):
    for sent, headers in [({"timeout": 2.5}, {}), ({}, {"X-Request-Timeout": "2.5"})]:
        answer = await http.post(path, json={**body, **sent}, headers=headers)
        assert answer.status_code == 200
    both = await http.post(path, json={**body, "timeout": 3}, headers={"X-Request-Timeout": "3.0"})
    assert both.status_code == 200
    assert (await http.post(path, json={**body, "timeout": 86400})).status_code == 200
    assert cell.timeouts == [2.5, 2.5, 3.0, 600.0]  # the gateway's own is the most


@each_case("said", ["0", "-1", "1e9", "nan", "soon", ""])
async def test_a_time_limit_in_a_header_out_of_range_is_refused_by_name(
    said: str, cell: FakeCell, http: httpx.AsyncClient
):
    answer = await http.post(CHATS, json=CHAT, headers={"X-Request-Timeout": said})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-request-timeout"
    assert not cell.requests


async def test_two_time_limits_that_differ_are_a_contradiction(
    cell: FakeCell, http: httpx.AsyncClient
):
    answer = await http.post(CHATS, json={**CHAT, "timeout": 2}, headers={"X-Request-Timeout": "3"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")
    assert not cell.requests


async def test_a_passed_time_limit_is_a_504_or_the_last_event_of_a_stream(
    cell: FakeCell, http: httpx.AsyncClient
):
    cell.failure = DeadlineExceeded("the time limit of 2 s passed: it was in the queue")
    answer = await http.post(CHATS, json={**CHAT, "timeout": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    cell.fail_at = 2
    streamed = await http.post(CHATS, json={**CHAT, "timeout": 2, "stream": True})
    assert streamed.status_code == 200
    last = json.loads(streamed.text.split("\n\n")[-2].removeprefix("data: "))
    assert last["error"]["code"] == "deadline_exceeded"
