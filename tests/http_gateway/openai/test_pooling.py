"""vLLM's /pooling over the fake cell: a vector is [size, 1/2, -1/4]."""

from __future__ import annotations

import httpx

from http_gateway.openai.passes.embeddings import to_base64


async def test_vectors_come_in_vllms_format(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "input": ["a", "bcd"], "task": "embed"}
    reply = (await http.post("/pooling", json=body)).json()
    assert reply["id"].startswith("pool-")
    assert reply["created"] > 0
    assert (reply["object"], reply["model"]) == ("list", "llama")
    assert reply["data"] == [
        {"object": "pooling", "index": 0, "data": [1.0, 0.5, -0.25]},
        {"object": "pooling", "index": 1, "data": [3.0, 0.5, -0.25]},
    ]
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_they_may_be_base64_and_of_fewer_dimensions(http: httpx.AsyncClient) -> None:
    body = {"model": "llama", "input": "ab", "encoding_format": "base64", "dimensions": 2}
    (entry,) = (await http.post("/pooling", json=body)).json()["data"]
    assert entry["data"] == to_base64([2.0, 0.5])


async def test_another_way_of_pooling_is_refused_by_name(http: httpx.AsyncClient) -> None:
    reply = await http.post("/pooling", json={"model": "llama", "input": "a", "task": "score"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "task")
