"""Ranking, scores and classes over the fake cell: a pair scores its lengths' product over 100."""

from __future__ import annotations

import httpx

from http_gateway.openai.passes.relevance import CLASSIFY_PATHS, RERANK_PATHS, SCORE_PATHS
from sax.chat import Image
from sax.errors import InvalidRequest, QueueFull
from sax.passes import ChatInput, PairInput
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell

PNG = "data:image/png;base64,iVBORw0K"  # six bytes
PART = {"type": "image_url", "image_url": {"url": PNG}}
TEXT = {"type": "text", "text": "b"}
RERANK = {"query": "ab", "documents": ["c", "defg", {"text": "hi"}]}


async def post(http: httpx.AsyncClient, path: str, **body: object) -> httpx.Response:
    return await http.post(path, json={"model": "smollm2", **body})


@each_case("path", RERANK_PATHS)
async def test_documents_come_best_first(path: str, http: httpx.AsyncClient) -> None:
    reply = (await post(http, path, **RERANK)).json()
    assert reply["results"] == [
        {"index": 1, "relevance_score": 0.08},
        {"index": 2, "relevance_score": 0.04},
        {"index": 0, "relevance_score": 0.02},
    ]
    assert reply["model"] == "smollm2"
    assert reply["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    assert reply["id"].startswith("rerank-")


async def test_the_best_few_come_with_their_text(http: httpx.AsyncClient) -> None:
    reply = await post(http, "/v1/rerank", **RERANK, top_n=1, return_documents=True)
    assert reply.json()["results"] == [
        {"index": 1, "document": {"text": "defg"}, "relevance_score": 0.08}
    ]


@each_case("path", SCORE_PATHS)
@each_case(
    "first, second, scores",
    [
        ("ab", "c", [0.02]),
        ("ab", ["c", "de"], [0.02, 0.04]),
        (["a", "bc"], ["d", "e"], [0.01, 0.02]),
    ],
)
async def test_pairs_are_scored_in_order(
    first: object, second: object, scores: list[float], path: str, http: httpx.AsyncClient
) -> None:
    reply = (await post(http, path, text_1=first, text_2=second)).json()
    assert reply["object"] == "list"
    assert [each["score"] for each in reply["data"]] == scores
    assert [each["index"] for each in reply["data"]] == list(range(len(scores)))
    assert {each["object"] for each in reply["data"]} == {"score"}


@each_case("path", CLASSIFY_PATHS)
async def test_texts_and_token_ids_are_classified(path: str, http: httpx.AsyncClient) -> None:
    data = (await post(http, path, input=["ab", "abc"])).json()["data"]
    assert data == [
        {"index": 0, "label": "short", "probs": [0.5, 0.5], "num_classes": 2},
        {"index": 1, "label": "long", "probs": [0.25, 0.75], "num_classes": 2},
    ]
    assert len((await post(http, path, input=[[5, 6], [7]])).json()["data"]) == 2


@each_case(
    "documents, sent",
    [
        ([{"image": PNG}, "b"], [(6,), "b"]),
        ([{"image": PNG.partition(",")[2]}], [(6,)]),
        ([{"text": "b", "image": PNG}], [(6, "b")]),
        ([{"content": "b"}, {"content": [PART, TEXT]}], ["b", (6, "b")]),
        ({"content": [PART, TEXT]}, [(6,), "b"]),
        ([PART], [(6,)]),
    ],
)
async def test_documents_are_images_in_the_forms_of_others(
    documents: object, sent: list[object], cell: FakeCell, http: httpx.AsyncClient
) -> None:
    """As at Jina, Cohere, vLLM and OpenAI; (6, "b") is an image of six bytes, then a text."""
    for path, body in (
        ("/rerank", {"query": {"image": PNG}, "documents": documents}),
        ("/score", {"text_1": {"image": PNG}, "text_2": documents}),
    ):
        assert (await post(http, path, **body)).status_code == 200
        assert [*map(shown, cell.pairs[0])] == [(6,)]
        assert [*map(shown, cell.pairs[1])] == sent


def shown(given: PairInput) -> object:
    if not isinstance(given, ChatInput):
        return given
    [message] = given.messages
    return tuple(len(p.data) if isinstance(p, Image) else p for p in message.content)


async def test_candidates_stand_in_place_of_labels(cell: FakeCell, http: httpx.AsyncClient) -> None:
    asked = {"input": {"image": PNG}, "candidates": ["a cat", "a dog", {"image": PNG}]}
    [found] = (await post(http, "/classify", **asked)).json()["data"]
    assert found == {"index": 0, "label": "a cat", "probs": [1.0, 0.0, 0.0], "num_classes": 3}
    assert [*map(shown, cell.offered)] == ["a cat", "a dog", (6,)]


@each_case(
    "path, body, param, says",
    [
        ("/v1/rerank", {"query": "a"}, "documents", "required"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents", "at least 1"),
        ("/v1/rerank", {"query": "a", "documents": [5]}, "documents[0]", "send text"),
        ("/rerank", {"query": "a", "documents": [{"image": 5}]}, "documents[0].image", "a URL"),
        ("/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0]", "damaged"),
        ("/rerank", {"query": {"content": []}, "documents": ["b"]}, "query.content", "of parts"),
        ("/rerank", {"query": "a", "documents": [{"img": "x"}]}, "documents[0].img", "not a known"),
        (
            *("/rerank", {"query": "a", "documents": [{"image": PNG}], "return_documents": True}),
            *("return_documents", "is for texts"),
        ),
        ("/v1/score", {"text_1": "a", "text_2": [{"image": PNG}] * 17}, "documents", "at most 16"),
        (
            *("/v1/score", {"text_1": "a", "text_2": {"image": "http://10.0.0.1/a.png"}}),
            *("text_2[0]", "--media_hosts"),
        ),
        ("/classify", {"input": "a", "candidates": []}, "candidates", "at least 1"),
        ("/v1/rerank", {"query": "a", "documents": ["b"] * 2049}, "documents", "at most 2048"),
        ("/v1/rerank", RERANK | {"top_n": 0}, "top_n", "greater than or equal to 1"),
        ("/v1/rerank", RERANK | {"rank_fields": ["x"]}, "rank_fields", "not supported"),
        ("/v1/rerank", RERANK | {"topn": 1}, "topn", "not a known field"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_1", "send one text_1"),
        ("/score", {"text_1": ["a"] * 2049, "text_2": "c"}, "text_1", "at most 2048"),
        ("/v1/score", {"text_1": "a"}, "text_2", "required"),
        ("/v1/classify", {"input": [[]]}, "input", "send text"),
        ("/classify", {"input": "a", "softmax": False}, "softmax", "not supported"),
        (
            *("/classify", {"input": "a", "aggregation_strategy": "simple"}),
            *("aggregation_strategy", "is for classifiers of tokens"),
        ),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    path: str, body: dict[str, object], param: str, says: str, http: httpx.AsyncClient
) -> None:
    answer = await post(http, path, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


@each_case("path", CLASSIFY_PATHS)
async def test_a_classifier_of_tokens_finds_entities(
    path: str, cell: FakeCell, http: httpx.AsyncClient
) -> None:
    cell.by_token = True
    none = (await post(http, path, input="a BC")).json()["data"]
    assert none == [
        {
            "index": 0,
            "entities": [
                {"entity": "I-NAME", "index": 2, "score": 0.7, "word": "B", "start": 2, "end": 3},
                {"entity": "I-NAME", "index": 3, "score": 0.7, "word": "C", "start": 3, "end": 4},
            ],
        }
    ]
    asked = {"input": ["ABCDEF", "a"], "aggregation_strategy": "simple", "ignore_labels": []}
    first, second = (await post(http, path, **asked)).json()["data"]
    found = [(e["entity_group"], e["word"], e["start"], e["end"]) for e in first["entities"]]
    assert found == [("NAME", "ABCD", 0, 4), ("NAME", "EF", 4, 6)]
    assert [each["entity_group"] for each in second["entities"]] == ["O"]
    ids = await post(http, path, input=[[5]])
    assert ids.status_code == 400
    assert "send texts" in ids.json()["error"]["message"]


async def test_the_cells_refusals_pass_through(cell: FakeCell, http: httpx.AsyncClient) -> None:
    cell.failure = InvalidRequest("is a language model and does not serve lm.rerank", param="model")
    answer = await post(http, "/v1/rerank", **RERANK)
    assert answer.status_code == 400
    assert "does not serve lm.rerank" in answer.json()["error"]["message"]
    cell.failure = QueueFull("full", retry_after_s=2)
    assert (await post(http, "/v1/score", text_1="a", text_2="b")).status_code == 429
