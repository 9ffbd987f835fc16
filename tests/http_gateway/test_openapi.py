import json

import httpx

from http_gateway.openai.schema import ChatRequest
from http_gateway.openapi import body_of


def test_a_described_body_holds_no_reference():
    described = body_of(ChatRequest)
    assert "$ref" not in json.dumps(described)
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    turn = schema["properties"]["messages"]["items"]
    assert turn["required"] == ["role"]


async def test_the_document_tells_the_body_of_every_route_that_takes_one(http: httpx.AsyncClient):
    paths = (await http.get("/openapi.json")).json()["paths"]
    posts = [path for path, verbs in paths.items() if "requestBody" in verbs.get("post", {})]
    assert sorted(posts) == [
        "/classify",
        "/generate",
        "/listall",
        "/listcell",
        "/publish",
        "/rerank",
        "/rollback",
        "/score",
        "/unpublish",
        "/v1/chat/completions",
        "/v1/classify",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v2/rerank",
    ]


async def test_the_document_tells_the_query_of_events(http: httpx.AsyncClient):
    paths = (await http.get("/openapi.json")).json()["paths"]
    told = {one["name"]: one for one in paths["/events"]["get"]["parameters"]}
    assert set(told) == {"model", "before", "limit"}
    assert told["limit"]["schema"]["maximum"] == 1000
    assert not told["model"]["required"]
