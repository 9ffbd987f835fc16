"""httpx: what a program of one's own sends, field by field."""

import json
import os

import httpx

PACKAGE = "httpx"
MODEL = os.environ["SAX_CLIENTS_MODEL"]
_HTTP = httpx.Client(base_url=os.environ["SAX_CLIENTS_URL"], timeout=120)
_ASKED = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 24,
}


def chat() -> None:
    """`POST /v1/chat/completions`"""
    answer = _HTTP.post("/v1/chat/completions", json=_ASKED).raise_for_status().json()
    assert "Paris" in answer["choices"][0]["message"]["content"], answer


def stream() -> None:
    """The same, streamed: the parts add up to the whole"""
    whole = _HTTP.post("/v1/chat/completions", json=_ASKED).raise_for_status().json()
    with _HTTP.stream("POST", "/v1/chat/completions", json={**_ASKED, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
    assert text == whole["choices"][0]["message"]["content"]


def leaves() -> None:
    """A stream that is closed early, and a request after it"""
    asked = {**_ASKED, "stream": True, "max_tokens": 500, "ignore_eos": True}
    with _HTTP.stream("POST", "/v1/chat/completions", json=asked) as response:
        next(response.iter_lines())
    chat()


def tokens() -> None:
    """vLLM's `/tokenize` and `/detokenize`: the text comes back"""
    text = "Grüße aus Paris"
    found = _HTTP.post("/tokenize", json={"model": MODEL, "prompt": text}).raise_for_status()
    asked = {"model": MODEL, "tokens": found.json()["tokens"]}
    back = _HTTP.post("/detokenize", json=asked).raise_for_status()
    assert back.json()["prompt"] == text


def refusal() -> None:
    """A field that does not exist is refused by name"""
    response = _HTTP.post("/v1/chat/completions", json={**_ASKED, "temprature": 0})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "temprature"


def health() -> None:
    """`/health`, `/version`, `/v1/models`, `/metrics`"""
    for route in ("/health", "/version", "/v1/models", "/metrics"):
        _HTTP.get(route).raise_for_status()
